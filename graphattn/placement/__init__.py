"""Placements, which define where the keys and values of edges lie.

A placement contains the code that is specific to one ragged batch (:data:`LOCAL`), to padded
sequences, to decoding or to several processes. The common code is
:func:`graphattn.functional.drive.drive`.
"""

from graphattn.functional.drive import LOCAL, Placement
from graphattn.placement.cache import Cache
from graphattn.placement.exchange import Exchange
from graphattn.placement.padded import Padded

__all__ = ['Cache', 'Exchange', 'LOCAL', 'Padded', 'Placement']
