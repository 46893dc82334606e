"""K hops of attention diffusion: spectrum, receptive field, and distance to the limit.

::

    python -m analysis.diffusion
    python -m analysis.diffusion --pattern 'SlidingWindow(4)' 'SlidingWindow(2) | RandomKeys(4)'
    python -m analysis.diffusion --pattern diffuser --n 16384 --spectra false
"""

from analysis.diffusion.fields import receptive_field
from analysis.diffusion.operators import operator, resolvent
from analysis.diffusion.question import Diffusion, diffusion
from analysis.diffusion.responses import heat_response, ppr_response

__all__ = ['Diffusion', 'diffusion', 'heat_response', 'operator', 'ppr_response',
           'receptive_field', 'resolvent']
