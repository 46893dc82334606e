"""Rows of keys, and the division of compiled loops over rows among threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from graphattn._jit import jit
from graphattn._threads import run_calls
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.factor_model import FactorModel

# Work is counted in draws, which took 20 to 50 ns.
TABLE_ENTRY, PRODUCT, COPY = 1 / 4, 1 / 64, 1 / 64
_GRAIN = 2**13  # draws that justify a thread, which may have to wait for a busy core
# Draws of one call, so that threads read the tables and keys of the same head: with those of two
# heads of 16,384 tokens in the shared cache, a draw takes up to twice as long.
_SHARE = 2**17


class Rows(NamedTuple):
    """Keys of all rows, relative to the segment and ascending, with gaps between rows."""

    keys: np.ndarray  # uint32
    begin: np.ndarray  # int64 [num_queries], where each row begins in ``keys``
    size: np.ndarray  # int64 [num_queries]

    def to_graph(self, model: FactorModel) -> BipartiteGraph:
        indptr = from_zero(self.size)
        key = np.empty(indptr[-1], key_dtype(model))
        first_key = model.key_ptr[model.segments.of_queries()].numpy()
        in_threads(_copy_rows, indptr * COPY, *self, first_key, indptr, key)
        return graph_of_rows(model, indptr, key)


def key_dtype(model: FactorModel) -> type:
    """Return the dtype of a graph's keys."""
    return np.uint16 if model.num_keys <= 2**16 else np.int32


def graph_of_rows(model: FactorModel, indptr: np.ndarray, key: np.ndarray) -> BipartiteGraph:
    """Build a graph with the segments of ``model``. The arrays come from numpy, because it requests
    huge pages and torch does not."""
    return BipartiteGraph._of(torch.from_numpy(indptr), torch.from_numpy(key), model.num_keys,
                              model.segments, None)


def from_zero(size: np.ndarray) -> np.ndarray:
    """Return the offsets of consecutive pieces: where each begins, then the end of the last."""
    return np.concatenate([[0], np.cumsum(size)])


def in_threads(kernel: Callable, work: np.ndarray, *arguments) -> None:
    """Run ``kernel(first, last, *arguments)`` on ranges of equal work. ``work`` is cumulative, in
    draws."""
    total = int(work[-1])
    num_parts = min(max(torch.get_num_threads(), total // _SHARE), 1 + total // _GRAIN)
    cuts = np.searchsorted(work, work[-1] * np.arange(1, num_parts) // num_parts)
    bounds = np.unique([0, *cuts, len(work) - 1])
    if len(bounds) > 1:
        run_calls([(kernel, first, last, *arguments) for first, last in zip(bounds, bounds[1:])])


@jit()
def _copy_rows(first, last, keys, begin, size, first_key, indptr, key):
    """Copy rows without gaps, and turn keys relative to the segment into keys of the graph."""
    for i in range(first, last):
        for e in range(size[i]):
            key[indptr[i] + e] = first_key[i] + keys[begin[i] + e]
