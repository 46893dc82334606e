"""Attention of other papers, for comparison, in place of graph attention:
``Encoder(attention=...)``.

Papers that attend along fixed edges are patterns of :mod:`graphattn.patterns` instead: ``Full``,
``SlidingWindow``, ``Star``, ``Strided``, ``Fixed``, ``LogSparse``, ``longformer`` and ``bigbird``.
"""

from experiments.baselines.base import Baseline
from experiments.baselines.combiner import Combiner
from experiments.baselines.linear import Linear
from experiments.baselines.linformer import Linformer
from experiments.baselines.nystromformer import Nystromformer
from experiments.baselines.performer import Performer
from experiments.baselines.reformer import Reformer
from experiments.baselines.sinkhorn import Sinkhorn
from experiments.baselines.synthesizer import Synthesizer

__all__ = ['Combiner', 'Linear', 'Linformer', 'Nystromformer', 'Performer', 'Reformer', 'Sinkhorn',
           'Synthesizer', 'Baseline']
