"""Lets Python find the packages ``experiments`` and ``analysis``, in a clone and from a wheel.

    import graphattn_commands.path
    from analysis.spectrum import spectrum
"""

import sys

from graphattn_commands import ROOT

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # at the end, because the names may be those of the user's own
