"""Reach of information through layers that apply patterns in turn."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from tqdm import tqdm

from graphattn import BipartiteGraph

_WORDS_PER_CHUNK = 2**23  # 64-bit words gathered at a time


def layers_to_reach_all(graphs: list[BipartiteGraph], max_layers: int
                        ) -> tuple[int | None, np.ndarray, str | None]:
    """Count the layers until every token has information from every other token.

    Args:
        graphs: The graphs that the layers apply in turn, all on the same tokens.
        max_layers: Maximum number of layers.

    Returns:
        The number of layers or ``None``, the fraction of the pairs that are reached after each
        layer, and the reason if there is no such number.
    """
    n = graphs[0].num_queries
    if n == 0:
        return 1, np.ones(1), None
    reached = np.packbits(np.eye(n, dtype=bool), axis=1)
    reached = np.pad(reached, [(0, 0), (0, -reached.shape[1] % 8)]).view(np.uint64)
    shares, states = [], set()
    for layer in tqdm(range(max_layers), desc='reach', unit='layer', delay=2, leave=False,
                      disable=None):
        reached = _spread(graphs[layer % len(graphs)], reached)
        shares.append(float(np.bitwise_count(reached).sum(dtype=np.int64)) / n**2)
        if shares[-1] == 1:
            return layer + 1, np.array(shares), None
        state = layer % len(graphs), blake2b(reached.tobytes(), digest_size=16).digest()
        if state in states:
            return None, np.array(shares), (f'reach repeats itself from layer {layer + 1} on, at '
                                            f'{shares[-1]:.3%} of the pairs')
        states.add(state)
    return None, np.array(shares), f'not all pairs are reached after {max_layers} layers'


def _spread(graph: BipartiteGraph, reached: np.ndarray) -> np.ndarray:
    """Return the tokens that each query has read after one more layer, as bits: the union of the
    tokens that its keys have read.

    Args:
        graph: The graph of the layer.
        reached: The tokens that each token has read so far, uint8 ``[n, bytes]``.
    """
    indptr, key = graph.indptr.cpu().numpy(), graph.key.cpu().numpy()
    after = np.zeros_like(reached)
    edges_per_chunk = max(1, _WORDS_PER_CHUNK // max(1, reached.shape[1]))
    first = 0
    while first < graph.num_queries:
        last = int(np.searchsorted(indptr, indptr[first] + edges_per_chunk, side='right')) - 1
        last = max(last, first + 1)
        query = first + np.flatnonzero(np.diff(indptr[first:last + 1]))
        if query.size:  # reduceat does not support empty groups
            gathered = reached[key[indptr[first]:indptr[last]]]
            after[query] = np.bitwise_or.reduceat(gathered, indptr[query] - indptr[first])
        first = last
    return after
