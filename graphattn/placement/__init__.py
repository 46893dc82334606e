"""Placements of the keys and values of edges, one file each.

A placement holds all differences between one ragged batch (:data:`LOCAL`), padded sequences,
decoding and several processes; :func:`graphattn.functional.drive.drive` does the rest.
"""

from graphattn.functional.drive import LOCAL, Placement
from graphattn.placement.cache import Cache
from graphattn.placement.exchange import Exchange
from graphattn.placement.padded import Padded

__all__ = ['Cache', 'Exchange', 'LOCAL', 'Padded', 'Placement']
