"""Command that compiles all loops before their first use, for container images and continuous
integration.

    python -m graphattn.compile

Compiled loops are cached in ``NUMBA_CACHE_DIR``, or next to their sources if the folders of the
sources are writable. Some loops are still compiled on first use: for graphs of 2**31 nodes or more,
and for graphs of more than 2**16 nodes in float64, a dtype that serves to check gradients.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from graphattn.functional import (
    attention_diffusion,
    edge_attention,
    edge_feature_attention,
    edge_probability,
)
from graphattn.graphs.graph import BipartiteGraph
from graphattn.patterns import Full, SlidingWindow
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg

NUM_NODES = 2**4, 2**16 + 1  # indices of 16 and of 32 bits


def main(*others: Callable[[], None]) -> None:
    """Compile the loops of the library, and those that ``others`` call, in parallel processes."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--float64', action='store_true',
                        help='also compile loops for small float64 graphs')
    options = parser.parse_args()
    tasks = [(other,) for other in others]
    tasks += product(OPERATIONS, NUM_NODES, [torch.float32])
    if options.float64:
        tasks += product(OPERATIONS, NUM_NODES[:1], [torch.float64])
    spawn = multiprocessing.get_context('spawn')
    with ProcessPoolExecutor(min(os.cpu_count(), len(tasks)), spawn, _begin) as pool:
        running = [pool.submit(operation, *rest) for operation, *rest in tasks]
        for done in tqdm(as_completed(running), total=len(running), desc='compiled', disable=None):
            done.result()


def _begin() -> None:
    logging.getLogger('graphattn').setLevel(logging.ERROR)  # the progress bar shows the compilation
    torch.set_num_threads(1)


# Compiled operations, each on the smallest graph of its kind #########################


def attend(num_nodes: int, dtype: torch.dtype) -> None:
    _train(edge_attention(*_tokens(num_nodes, dtype), _graph(num_nodes), backend='numba'))
    _attend_in_tiles(num_nodes, dtype)


def attend_with_softcap(num_nodes: int, dtype: torch.dtype) -> None:
    _attend_in_tiles(num_nodes, dtype, softcap=1.)
    for hops in (1, 2):
        _train(edge_attention(*_tokens(num_nodes, dtype), _graph(num_nodes), softcap=1., hops=hops,
                              teleport=0.5 * (hops - 1), backend='numba'))


def attend_with_features(num_nodes: int, dtype: torch.dtype) -> None:
    graph = _graph(num_nodes)
    edge_attr, projection = (torch.ones(shape, dtype=dtype, requires_grad=True)
                             for shape in ((graph.num_edges, 1), (1, 1, 1)))
    _train(edge_feature_attention(*_tokens(num_nodes, dtype), graph, edge_attr, projection,
                                  backend='numba'))


def attend_and_diffuse(num_nodes: int, dtype: torch.dtype) -> None:
    _train(edge_attention(*_tokens(num_nodes, dtype), _graph(num_nodes), hops=2, teleport=0.5,
                          backend='numba'))


def weigh_and_sum(num_nodes: int, dtype: torch.dtype) -> None:
    graph, tokens = _graph(num_nodes), _tokens(num_nodes, dtype)
    out, weight = edge_attention(*tokens, graph, return_attention_weights=True, backend='numba')
    _train(out + attention_diffusion(weight, tokens[2], graph, hops=2, teleport=0.5,
                                     backend='numba'))


def sample(num_nodes: int, dtype: torch.dtype) -> None:
    from graphattn.ops.sample.cpu.comparing import SHORT
    # with few clusters products are compiled, with many a matrix library computes them
    for num_clusters in {1, SHORT // num_nodes + 1}:
        query, mixing, key = (
            torch.full((size, num_clusters), 0.5 / num_clusters, dtype=dtype, requires_grad=True)
            for size in (1, num_clusters, num_nodes))
        model = FactorModel(query, mixing, key)
        for method in 'compare', 'thin':
            graph = sample_bernoulli(model, method=method)
        sample_fastrg(model)
        _train(edge_probability(model, graph))


def sort(num_nodes: int, dtype: torch.dtype) -> None:
    BipartiteGraph.from_edge_index(_graph(num_nodes).edge_index, num_nodes, return_perm=True)


def list_ranges(num_nodes: int, dtype: torch.dtype) -> None:
    from graphattn.graphs.cpu import put_ranges
    indptr, key = (rows.numpy() for rows in _graph(num_nodes).csr)
    none = np.empty((0, 1), indptr.dtype)
    put_ranges(none, none, indptr.copy(), key.copy(), num_nodes)


def join(num_nodes: int, dtype: torch.dtype) -> None:
    from graphattn.graphs.cpu import find_in_rows, merge_rows
    indptr, key = (rows.numpy() for rows in _graph(num_nodes).csr)
    merge_rows(indptr, key, indptr[:-1], indptr[1:], key, indptr.copy(),
               np.empty(2 * key.size, key.dtype))
    find_in_rows(indptr, key, indptr, key, np.empty(key.size, np.bool_))


OPERATIONS: list[Callable[[int, torch.dtype], None]] = [
    attend, attend_with_softcap, attend_with_features, attend_and_diffuse, weigh_and_sum, sample,
    sort, list_ranges, join]


def _graph(num_nodes: int) -> BipartiteGraph:
    return SlidingWindow(1).build(num_nodes)


def _tokens(num_nodes: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.ones(num_nodes, 1, 1, dtype=dtype, requires_grad=True) for _ in range(3)]


def _attend_in_tiles(num_nodes: int, dtype: torch.dtype, **options: float) -> None:
    num_keys, few = num_nodes + 2**7, 2**3
    query, *others = (torch.ones(size, 1, 64, dtype=dtype, requires_grad=True)
                      for size in (few, num_keys, num_keys))
    _train(edge_attention(query, *others, Full().build(few, num_keys), backend='numba', **options))


def _train(out: Tensor) -> None:
    out.sum().backward()


if __name__ == '__main__':
    main()
