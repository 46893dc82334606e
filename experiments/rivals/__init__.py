"""Other people's attention, in the place of graph attention: ``Encoder(attention=...)``.

Those that attend along fixed edges are patterns: ``Full``, ``SlidingWindow``, ``Star``,
``Strided``, ``Fixed``, ``LogSparse``, ``longformer`` and ``bigbird`` of :mod:`graphattn.patterns`.
"""

from experiments.rivals.base import Rival
from experiments.rivals.linear import Linear
from experiments.rivals.linformer import Linformer
from experiments.rivals.nystromformer import Nystromformer
from experiments.rivals.performer import Performer
from experiments.rivals.reformer import Reformer

__all__ = ['Linear', 'Linformer', 'Nystromformer', 'Performer', 'Reformer', 'Rival']
