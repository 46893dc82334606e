"""The graphs on which every function is examined: small, fixed and awkward."""

from __future__ import annotations

import torch

from graphattn.graphs.graph import BipartiteGraph


def random_graph(num_queries: int, num_keys: int, density: float = 0.4,
                 seed: int = 0) -> BipartiteGraph:
    """Return a graph in which each query has at least one key."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(num_queries, num_keys, generator=generator) < density
    mask[torch.arange(num_queries), torch.arange(num_queries) % num_keys] = True
    return BipartiteGraph.from_mask(mask)


def no_edges(num_queries: int, num_keys: int) -> BipartiteGraph:
    return BipartiteGraph(torch.empty(2, 0, dtype=torch.long), num_queries, num_keys)


def idle_nodes(num_queries: int = 10, num_keys: int = 10) -> BipartiteGraph:
    """Return a random graph without edges at both ends and two nodes in the middle."""
    mask = random_graph(num_queries, num_keys, 0.5).to_mask()
    mask[[0, 4, 5, -1]] = False
    mask[:, [0, 6, 7, -1]] = False
    return BipartiteGraph.from_mask(mask)


def hub(size: int = 20) -> BipartiteGraph:
    """Return a graph in which key 0 and query 0 meet all, and each other token itself."""
    mask = torch.eye(size, dtype=torch.bool)
    mask[0] = mask[:, 0] = True
    return BipartiteGraph.from_mask(mask)


def ragged(*sizes: tuple[int, int]) -> BipartiteGraph:
    return BipartiteGraph.batch([
        random_graph(n, m, 0.5, seed=n) if n and m else no_edges(n, m) for n, m in sizes])


def across_tiles(size: int = 150) -> BipartiteGraph:
    """Return a graph whose queries attend to the first 1, 2, ..., ``size`` keys, shuffled."""
    lengths = torch.arange(1, size + 1)
    # of tiles of 8 to 128 keys, some rows end with a tile, and others inside
    mask = torch.arange(size) < lengths[torch.randperm(
        size, generator=torch.Generator().manual_seed(0))].unsqueeze(1)
    return BipartiteGraph.from_mask(mask)


def at_the_ends(num_queries: int, num_keys: int) -> BipartiteGraph:
    """Return a graph with edges to the first and last keys, and around the limit of 16 bits."""
    key = torch.tensor([0, 1, 65_535, 65_536, num_keys - 1])
    key = key[key < num_keys].unique()
    query = torch.arange(num_queries)
    edges = torch.stack([key.repeat(num_queries), query.repeat_interleave(len(key))])
    return BipartiteGraph(edges, num_queries, num_keys)


with torch.device('cpu'):  # whatever the default device is during the import
    GRAPHS = {
        'square': random_graph(12, 12),
        # As many edges in each row, so that what remembers sizes takes them for the same.
        'square, other edges': BipartiteGraph.from_mask(random_graph(12, 12).to_mask().flip(1)),
        'all pairs': random_graph(6, 6, 1.),
        'one node': random_graph(1, 1, 1.),
        'one key': random_graph(7, 1, 1.),
        'one query': random_graph(1, 9),
        'more keys': random_graph(5, 17),
        'more queries': random_graph(17, 5),
        'hub': hub(),
        'rows of all lengths': across_tiles(),
        'long row': random_graph(1, 300, 1.),
        'long column': random_graph(300, 1, 1.),
        'very long row': random_graph(1, 2_500, 1.),
        # More than 16 bits count, and than a GPU has blocks along two of its axes.
        'many keys': at_the_ends(3, 70_000),
        'many queries': at_the_ends(70_000, 3),
        'ragged batch': ragged((7, 7), (1, 1), (12, 12), (4, 4)),
        'ragged batch, an empty sequence': ragged((3, 3), (0, 0), (5, 5)),
        'idle nodes': idle_nodes(),
        'ragged rectangles': ragged((3, 8), (0, 2), (9, 4), (2, 0), (1, 1)),
        'idle nodes, more keys': idle_nodes(9, 14),
        'no edges': no_edges(4, 4),
        'no keys': no_edges(3, 0),
        'no queries': no_edges(0, 4),
        'nothing': no_edges(0, 0),
    }
