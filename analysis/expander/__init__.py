"""Expansion of an attention graph: spectral gap, bounds, best cut and diameter.

::

    python -m analysis.expander
    python -m analysis.expander --pattern bigbird diffuser --n 2048
    python -m analysis.expander --pattern 'RandomRegular(8)' --n 1024 --symmetrization mean
"""

from analysis.expander.exact import EXACT_UP_TO, exact_expansion
from analysis.expander.question import Expansion, expander

__all__ = ['EXACT_UP_TO', 'Expansion', 'exact_expansion', 'expander']
