"""Attention of other papers, as a replacement of graph attention: ``Encoder(attention=...)``.

Attention along fixed edges is a pattern instead: ``Full``, ``SlidingWindow``, ``Star``,
``Strided``, ``Fixed``, ``LogSparse``, ``longformer`` and ``bigbird`` of :mod:`graphattn.patterns`.
"""

from experiments.baselines.base import Baseline
from experiments.baselines.linear import Linear
from experiments.baselines.linformer import Linformer
from experiments.baselines.nystromformer import Nystromformer
from experiments.baselines.performer import Performer
from experiments.baselines.reformer import Reformer

__all__ = ['Linear', 'Linformer', 'Nystromformer', 'Performer', 'Reformer', 'Baseline']
