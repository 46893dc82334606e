"""The graphs on which every kernel and every layer is tested: small, fixed, and awkward."""

from collections.abc import Callable

import torch

from graphattn import BipartiteGraph


def random_graph(num_queries: int, num_keys: int, density: float = 0.3,
                 seed: int = 0) -> BipartiteGraph:
    """Each pair is an edge with probability ``density``."""
    generator = torch.Generator().manual_seed(seed)
    return BipartiteGraph.from_mask(
        torch.rand(num_queries, num_keys, generator=generator) < density)


def _no_edges(num_queries: int, num_keys: int) -> BipartiteGraph:
    return BipartiteGraph(torch.empty(2, 0, dtype=torch.long), num_queries, num_keys)


def _ragged_batch() -> BipartiteGraph:
    lengths = (7, 1, 12, 0, 4)
    return BipartiteGraph.batch([random_graph(n, n, 0.5, seed=n) for n in lengths])


def _ragged_rectangles() -> BipartiteGraph:
    sizes = ((3, 8), (0, 2), (9, 4), (2, 0), (1, 1))
    return BipartiteGraph.batch([random_graph(n, m, 0.5, seed=n) for n, m in sizes])


def _idle_nodes() -> BipartiteGraph:
    """The first, the last and two neighbours in the middle do not attend, or are not attended."""
    mask = random_graph(10, 12, 0.5).to_mask()
    mask[[0, 4, 5, 9]] = False
    mask[:, [0, 6, 7, 11]] = False
    return BipartiteGraph.from_mask(mask)


def _idle_tokens() -> BipartiteGraph:
    """Tokens that attend to none, that none attends to, and one that is both."""
    mask = random_graph(10, 10, 0.5, seed=1).to_mask()
    mask[[0, 4, 5]] = False
    mask[:, [5, 6, 9]] = False
    return BipartiteGraph.from_mask(mask)


def _shuffled_duplicates() -> BipartiteGraph:
    edge_index = random_graph(9, 11).edge_index.as_tensor()
    edge_index = torch.cat([edge_index, edge_index[:, ::3]], dim=1)
    order = torch.randperm(edge_index.size(1), generator=torch.Generator().manual_seed(1))
    return BipartiteGraph.from_edge_index(edge_index[:, order], 9, 11)


def _strided_edge_index() -> BipartiteGraph:
    """The rows of its ``edge_index`` are not contiguous in memory."""
    pairs = random_graph(8, 6).edge_index.as_tensor().t().contiguous()
    return BipartiteGraph(pairs.t(), 8, 6)


def _graph_per_head() -> BipartiteGraph:
    """Three heads over the same sequences of 5, 2 and 4 tokens, head after head."""
    return BipartiteGraph.batch([
        BipartiteGraph.batch([random_graph(n, n, 0.5, seed=10 * head + n) for n in (5, 2, 4)])
        for head in range(3)])


def _hub() -> BipartiteGraph:
    """Everyone attends to key 0 and query 0 to everyone; all others also to themselves."""
    mask = torch.eye(20, dtype=torch.bool)
    mask[0] = mask[:, 0] = True
    return BipartiteGraph.from_mask(mask)


GRAPHS: dict[str, Callable[[], BipartiteGraph]] = {
    'square': lambda: random_graph(12, 12),
    'more_keys': lambda: random_graph(5, 17),
    'more_queries': lambda: random_graph(17, 5),
    'ragged_batch': _ragged_batch,
    'ragged_rectangles': _ragged_rectangles,
    'idle_nodes': _idle_nodes,
    'idle_tokens': _idle_tokens,
    'one_token': lambda: random_graph(1, 1, 1.),
    'no_edges': lambda: _no_edges(3, 4),
    'no_keys': lambda: _no_edges(3, 0),
    'no_queries': lambda: _no_edges(0, 4),
    'no_tokens': lambda: _no_edges(0, 0),
    'no_segments': lambda: BipartiteGraph(torch.empty(2, 0, dtype=torch.long), 0,
                                          query_ptr=torch.tensor([0])),
    'shuffled_duplicates': _shuffled_duplicates,
    'strided_edge_index': _strided_edge_index,
    'graph_per_head': _graph_per_head,
    'full': lambda: random_graph(6, 6, 1.),
    'hub': _hub,
}
