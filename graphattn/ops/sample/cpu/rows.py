"""Keys of the edges of each query, and the division of compiled loops over queries among
threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from graphattn._jit import jit
from graphattn._threads import run_calls
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.factor_model import FactorModel

# Work is counted in draws of 20 to 50 ns. These are the times of an entry of an alias table, of a
# product and of the copy of a key, relative to a draw.
TABLE_ENTRY, PRODUCT, COPY = 1 / 4, 1 / 64, 1 / 64
_GRAIN = 2**13  # draws from which on one more thread saves time, even if its core is busy
# Draws of one call, so few that all threads read the tables and keys of the same head. If the
# shared cache has those of two heads of 16,384 tokens, a draw takes up to twice as long.
_SHARE = 2**17


class Rows(NamedTuple):
    """The keys of the edges of each query, ascending, with gaps between queries."""

    keys: np.ndarray  # uint32, counted from the first key of the segment
    begin: np.ndarray  # where the row of each query begins in ``keys``, int64 [num_queries]
    size: np.ndarray  # number of keys of each query, int64 [num_queries]

    def to_graph(self, model: FactorModel) -> BipartiteGraph:
        indptr = from_zero(self.size)
        key = np.empty(indptr[-1], key_dtype(model))
        first_key = model.key_ptr[model.segments.of_queries()].numpy()
        in_threads(_copy_rows, indptr * COPY, *self, first_key, indptr, key)
        return graph_of_rows(model, indptr, key)


def key_dtype(model: FactorModel) -> type:
    return np.uint16 if model.num_keys <= 2**16 else np.int32


def graph_of_rows(model: FactorModel, indptr: np.ndarray, key: np.ndarray) -> BipartiteGraph:
    """Return the graph of CSR arrays that numpy allocated, which requests huge pages."""
    return BipartiteGraph._of(torch.from_numpy(indptr), torch.from_numpy(key), model.num_keys,
                              model.segments, None)


def from_zero(size: np.ndarray) -> np.ndarray:
    """Return where consecutive pieces of the given sizes begin, and the end of the last."""
    return np.concatenate([[0], np.cumsum(size)])


def in_threads(kernel: Callable, work: np.ndarray, *arguments) -> None:
    """Run ``kernel(first, last, *arguments)`` in threads, on ranges of about equal work."""
    # work: cumulative, in draws, [num_items + 1]
    total = int(work[-1])
    num_parts = min(max(torch.get_num_threads(), total // _SHARE), 1 + total // _GRAIN)
    cuts = np.searchsorted(work, work[-1] * np.arange(1, num_parts) // num_parts)
    bounds = np.unique([0, *cuts, len(work) - 1])
    if len(bounds) > 1:
        run_calls([(kernel, first, last, *arguments) for first, last in zip(bounds, bounds[1:])])


@jit()
def _copy_rows(first, last, keys, begin, size, first_key, indptr, key):
    # afterwards, keys are counted from the first key of the graph
    for i in range(first, last):
        for e in range(size[i]):
            key[indptr[i] + e] = first_key[i] + keys[begin[i] + e]
