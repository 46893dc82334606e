"""Placements, which define where the keys and values of edges lie. Each placement has its own file.

A placement contains all code that differs between one ragged batch (:data:`LOCAL`), padded
sequences, decoding and several processes. The common code is
:func:`graphattn.functional.drive.drive`.
"""

from graphattn.functional.drive import LOCAL, Placement
from graphattn.placement.cache import Cache
from graphattn.placement.exchange import Exchange
from graphattn.placement.padded import Padded

__all__ = ['Cache', 'Exchange', 'LOCAL', 'Padded', 'Placement']
