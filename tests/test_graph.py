"""BipartiteGraph: orientation, conversions, set algebra, segments, and what it refuses."""

import copy
import gc
import math
import operator
import pickle
import random
from itertools import accumulate

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric import EdgeIndex

from graphattn import BipartiteGraph, patterns
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg
from tests.graphs import GRAPHS, random_graph
from tests.pairwise import pairwise


def edges(*pairs: tuple[int, int]) -> torch.Tensor:
    """``edge_index`` of (key, query) pairs."""
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t().contiguous()


@pytest.fixture
def graph() -> BipartiteGraph:
    """Query 0 attends to keys 1 and 3, query 1 to key 0, and nobody to key 2."""
    return BipartiteGraph(edges((1, 0), (3, 0), (0, 1)), num_queries=2, num_keys=4)


@pytest.fixture
def segments() -> BipartiteGraph:
    """Segments of 2 x 3, 0 x 0, 1 x 2 and 2 x 0 queries x keys, with probabilities."""
    edge_prob = torch.tensor([0.1, 0.2, 0.3, 0.4])
    return BipartiteGraph(edges((0, 0), (2, 0), (1, 1), (4, 2)), 5, 5, edge_prob=edge_prob,
                          query_ptr=torch.tensor([0, 2, 2, 3, 5]),
                          key_ptr=torch.tensor([0, 3, 3, 5, 5]))


# Orientation #########################################################################


def test_orientation_of_networkx_on_tokens():
    attends = nx.DiGraph([('a', 'b'), ('a', 'c')])  # b and c attend to a
    assert BipartiteGraph.from_networkx(attends).to_mask().int().tolist() == [
        [0, 0, 0], [1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize('name', GRAPHS)
def test_edge_index_is_a_valid_pyg_edge_index(name):
    graph = GRAPHS[name]()
    edge_index = graph.edge_index
    assert isinstance(edge_index, EdgeIndex) and edge_index.is_sorted_by_col
    assert tuple(edge_index.sparse_size()) == (graph.num_keys, graph.num_queries)
    edge_index.validate()


# Invariants over the table ###########################################################


@pytest.mark.parametrize('num_keys, dtype', [
    (2**16, torch.uint16), (2**16 + 1, torch.int32), (2**31, torch.int32),
    (2**31 + 1, torch.int64)])
def test_kernels_read_keys_in_as_few_bytes_as_are_enough(num_keys, dtype):
    graph = BipartiteGraph(edges((0, 1), (num_keys - 1, 0))[:, [1, 0]], 2, num_keys)
    assert graph.csr[1].dtype == dtype
    assert graph.csr[1].long().equal(graph.key)


@pytest.mark.parametrize('name', GRAPHS)
def test_transpose_twice_is_identity(name):
    graph = GRAPHS[name]()
    assert graph.transpose().to_mask().equal(graph.to_mask().t())
    assert graph.transpose().validate().transpose() == graph


# Conversions #########################################################################


@pytest.mark.parametrize('name', ['square', 'more_keys', 'more_queries', 'no_edges'])
def test_round_trip_of_sparse_tensor(name):
    pytest.importorskip('torch_sparse')
    graph = GRAPHS[name]()
    weight = torch.arange(1., graph.num_edges + 1)
    sparse = graph.to_sparse_tensor(weight)
    assert BipartiteGraph.from_mask(sparse.to_dense() != 0) == graph
    assert sparse.storage.value().equal(weight)


def test_networkx_undirected_edges_attend_both_ways():
    undirected = nx.Graph([(0, 1), (1, 2), (2, 2)])
    assert BipartiteGraph.from_networkx(undirected).to_mask().int().tolist() == [
        [0, 1, 0], [1, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize('kind', [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_networkx_bipartite(kind):
    bipartite = kind()
    bipartite.add_nodes_from(['q0', 'q1'], bipartite=1)
    bipartite.add_nodes_from(['k0', 'k1', 'k2'], bipartite=0)
    bipartite.add_edges_from([('k2', 'q0'), ('k0', 'q1'), ('k2', 'q0')])
    assert BipartiteGraph.from_networkx(bipartite).to_mask().int().tolist() == [
        [0, 0, 1], [1, 0, 0]]


def test_scipy_keeps_weights_and_drops_explicit_zeros(graph):
    weight = torch.tensor([0.5, 0., -2.])
    matrix = graph.to_scipy(weight)
    assert matrix.toarray().tolist() == [[0, 0.5, 0, 0], [-2, 0, 0, 0]]
    assert BipartiteGraph.from_scipy(matrix) == BipartiteGraph(edges((1, 0), (0, 1)), 2, 4)


@pytest.mark.parametrize('matrix', [
    sp.coo_array(([1, -1, 2, 0], ([0, 0, 0, 1], [1, 1, 0, 2])), shape=(2, 4)),
    sp.csr_array(([1, -1, 2, 0], [1, 1, 0, 2], [0, 3, 4]), shape=(2, 4)),
    sp.csc_array(([2, 1, -1, 0], [0, 0, 0, 1], [0, 1, 3, 4, 4]), shape=(2, 4)),
    sp.bsr_array((np.array([1, -1, 2, 0]).reshape(4, 1, 1), [1, 1, 0, 2], [0, 3, 4]),
                 shape=(2, 4))], ids=['coo', 'csr', 'csc', 'bsr'])
def test_an_entry_that_scipy_stores_in_parts_is_their_sum(matrix):
    before = matrix.data.copy()
    assert BipartiteGraph.from_scipy(matrix) == BipartiteGraph(edges((0, 0)), 2, 4)
    assert np.array_equal(matrix.data, before)


def test_from_edge_index_keeps_probabilities_beside_their_edges():
    shuffled = edges((0, 1), (3, 0), (1, 0), (0, 1))
    edge_prob = torch.tensor([0.1, 0.2, 0.3, 0.1], requires_grad=True)
    graph = BipartiteGraph.from_edge_index(shuffled, 2, 4, edge_prob=edge_prob)
    assert graph.edge_prob.tolist() == pytest.approx([0.3, 0.2, 0.1])
    grad, = torch.autograd.grad(graph.edge_prob @ torch.tensor([1., 2., 4.]), edge_prob)
    assert grad[1:3].tolist() == [2., 1.] and grad[[0, 3]].sum() == 4.


# Edges in any order ##################################################################


def shuffled(name: str) -> tuple[BipartiteGraph, torch.Tensor]:
    """A graph, and its edges in another order."""
    graph = GRAPHS[name]()
    order = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(1))
    return graph, graph.edge_index.as_tensor()[:, order]


@pytest.mark.parametrize('num_queries, num_keys, num_edges', [
    (0, 0, 0), (3, 0, 0), (1, 1, 1), (5, 7, 12), (9, 9, 81), (300, 200, 900), (3, 2**16 + 1, 90),
    (3, 2**17, 9), (2, 2**33, 5)])
def test_edges_in_any_order_are_sorted_and_permuted(num_queries, num_keys, num_edges):
    """Counted where keys are few for the edges, compared where they are many."""
    numbers = random.Random(0).sample(range(num_queries * num_keys), num_edges)
    pair = torch.tensor(numbers, dtype=torch.long)
    edge_index = torch.stack([pair % max(num_keys, 1), pair // max(num_keys, 1)])
    graph, perm = BipartiteGraph.from_edge_index(edge_index, num_queries, num_keys,
                                                 return_perm=True)
    graph.validate()
    assert (graph.num_queries, graph.num_keys) == (num_queries, num_keys)
    assert torch.equal(graph.edge_index.as_tensor(), edge_index[:, perm])
    assert graph.is_reordered == (not torch.equal(perm, torch.arange(num_edges)))
    for row, size in ((0, num_keys), (1, num_queries)):
        for node in (-1, size):
            outside = torch.cat([edge_index, edge_index.new_zeros(2, 1)], dim=1)
            outside[row, -1] = node
            with pytest.raises(ValueError, match=r"'edge_index\[\d\]' must contain"):
                BipartiteGraph.from_edge_index(outside, num_queries, num_keys, return_perm=True)


@pytest.mark.parametrize('sort_order', ['row', 'col', None])
def test_perm_of_a_pyg_edge_index(sort_order):
    original, edge_index = shuffled('more_keys')
    if sort_order:
        by = {'row': 0, 'col': 1}[sort_order]
        edge_index = edge_index[:, edge_index[by].argsort(stable=True)]
    edge_index = EdgeIndex(edge_index, sparse_size=(17, 5), sort_order=sort_order)
    graph, perm = BipartiteGraph.from_edge_index(edge_index, 5, 17, return_perm=True)
    assert graph == original == BipartiteGraph.from_edge_index(edge_index, 5, 17)
    assert edge_index.as_tensor()[:, perm].equal(graph.edge_index.as_tensor())


def test_is_reordered_is_true_for_unsorted_or_duplicate_edges():
    in_order, reversed_ = edges((0, 0), (2, 0), (1, 1)), edges((1, 1), (2, 0), (0, 0))
    repeated = edges((0, 0), (0, 0), (2, 0), (1, 1))
    for prob in (False, True):
        def is_reordered(edge_index, prob=prob, **options):
            edge_prob = torch.full((edge_index.size(1),), 0.5) if prob else None
            graph = BipartiteGraph.from_edge_index(edge_index, 2, 3, edge_prob=edge_prob, **options)
            return (graph[0] if options else graph).is_reordered

        assert not is_reordered(in_order) and not is_reordered(in_order, return_perm=True)
        assert is_reordered(reversed_) and is_reordered(reversed_, return_perm=True)
        assert is_reordered(repeated)
    assert not BipartiteGraph.from_edge_index(edges(), 2, 3).is_reordered


REORDERED = {
    'to': lambda graph: graph.to('meta'),
    'with_edge_prob': lambda graph: graph.with_edge_prob(torch.ones(graph.num_edges)),
    'copy': copy.copy,
    'deepcopy': copy.deepcopy,
    'pickle': lambda graph: pickle.loads(pickle.dumps(graph)),
    'batch': lambda graph: BipartiteGraph.batch([GRAPHS['square'](), graph]),
    'batch of one': lambda graph: BipartiteGraph.batch([graph]),
    'segment': lambda graph: BipartiteGraph.batch([graph] * 2).segment(1),
    'unbatch': lambda graph: BipartiteGraph.batch([graph] * 2).unbatch()[0],
    'select_edges': lambda graph: graph.select_edges(graph.key < 2),
}


@pytest.mark.parametrize('operation', REORDERED.values(), ids=REORDERED)
def test_is_reordered_is_kept(operation):
    assert operation(GRAPHS['shuffled_duplicates']()).is_reordered
    assert not operation(GRAPHS['square']()).is_reordered


# Rows ################################################################################


KEY_DTYPES = [torch.int64, torch.int32, torch.int16, torch.uint16, torch.uint8]


@pytest.mark.parametrize('name, validate, dtype', pairwise(GRAPHS, [False, True], KEY_DTYPES))
def test_from_csr(name, validate, dtype):
    graph = GRAPHS[name]()
    edge_prob = torch.linspace(0, 1, graph.num_edges)
    made = BipartiteGraph.from_csr(
        graph.indptr.clone(), graph.key.to(dtype), graph.num_keys, edge_prob=edge_prob,
        query_ptr=graph.query_ptr, key_ptr=graph.key_ptr, validate=validate)
    assert made.validate() == graph.with_edge_prob(edge_prob)
    assert made.csr[1].dtype == graph.csr[1].dtype and not made.is_reordered


@pytest.mark.parametrize('dtype', KEY_DTYPES)
@pytest.mark.parametrize('num_keys', [12, 2**17])
def test_rows_may_change_after_a_graph_was_built_of_them(dtype, num_keys):
    graph = GRAPHS['square']()
    indptr, key = graph.indptr.clone(), graph.key.to(dtype)
    made = BipartiteGraph.from_csr(indptr, key, num_keys)
    before = copy.deepcopy(made)
    indptr.fill_(0)
    key.fill_(7)
    made.check_unchanged()
    assert made.validate() == before


# What is kept ########################################################################


MADE_OF_MANY_EDGES = {
    'pattern': lambda: patterns.RandomKeys(100).build(300, seed=0),
    'patterns': lambda: (patterns.SlidingWindow(40) | patterns.RandomKeys(50)).build(300, seed=0),
    'mask': lambda: BipartiteGraph.from_mask(torch.ones(200, 200, dtype=torch.bool)),
    'edge_index': lambda: BipartiteGraph(random_graph(300, 300).edge_index.as_tensor(), 300),
    'edges in any order': lambda: BipartiteGraph.from_edge_index(
        random_graph(300, 300).edge_index.flip(1), 300),
    'edges with probabilities': lambda: BipartiteGraph.from_edge_index(
        random_graph(300, 300).edge_index.flip(1), 300, edge_prob=torch.ones(
            random_graph(300, 300).num_edges)),
    'rows': lambda: BipartiteGraph.from_csr(random_graph(300, 300).indptr,
                                            random_graph(300, 300).key, validate=False),
    'batch': lambda: BipartiteGraph.batch([random_graph(300, 300)] * 3),
    'set operations': lambda: (random_graph(300, 300) | random_graph(300, 300, seed=1)) & (
        random_graph(300, 300) - random_graph(300, 300, seed=2)),
    'transpose': lambda: random_graph(300, 200).transpose(),
    'sample': lambda: sample_bernoulli(FACTORS),
    'sample of Poisson counts': lambda: sample_fastrg(FACTORS),
    'sample by torch': lambda: sample_bernoulli(FACTORS, method='torch'),
    'pickle': lambda: pickle.loads(pickle.dumps(random_graph(300, 300))),
}
FACTORS = FactorModel(torch.full((300, 2), 0.5), torch.full((2, 2), 0.5), torch.full((300, 2), 0.5))


@pytest.mark.parametrize('make', MADE_OF_MANY_EDGES.values(), ids=MADE_OF_MANY_EDGES)
def test_only_rows_stay_in_memory(make):
    gc.freeze()  # so that what was there before is not looked at
    try:
        graph = make()
        assert graph.num_edges > 10_000
        assert graph.key.dtype == graph.query.dtype == graph.edge_index.dtype == torch.int64
        gc.collect()
        assert not [each.shape for each in gc.get_objects() if issubclass(type(each), torch.Tensor)
                    and each.dtype == torch.int64 and each.numel() > 10_000]
    finally:
        gc.unfreeze()
    parts = [*graph.csr, graph.query_ptr, graph.key_ptr]
    parts += [] if graph.edge_prob is None else [graph.edge_prob]
    assert graph.nbytes == sum(part.nbytes for part in parts)
    for part in parts:  # nor is a part a view of more
        assert part.untyped_storage().nbytes() == part.nbytes


# Segments ###########################################################################


def test_batch_keeps_segments_and_probabilities(segments):
    joined = BipartiteGraph.batch([segments, segments]).validate()
    assert joined.query_ptr.tolist() == [0, 2, 2, 3, 5, 7, 7, 8, 10]
    assert joined.key_ptr.tolist() == [0, 3, 3, 5, 5, 8, 8, 10, 10]
    assert joined.num_segments == 8 and joined.num_edges == 8
    assert joined.edge_prob.equal(torch.cat([segments.edge_prob, segments.edge_prob]))


@pytest.mark.parametrize('sizes', [(2**15, 2**15 - 5, 5), (2**15 + 7, 2**14), (2**16, 9),
                                   (2**16 - 9, 9)])
def test_batch_shifts_keys_beyond_any_number_of_bits(sizes):
    graphs = [BipartiteGraph(torch.tensor([[0, size - 1], [0, 0]]), 1, size) for size in sizes]
    joined = BipartiteGraph.batch(graphs).validate()
    assert joined.key.tolist() == [key for graph, start in zip(graphs, accumulate(sizes, initial=0))
                                   for key in (graph.key + start).tolist()]


@pytest.mark.parametrize('name', GRAPHS)
def test_a_graph_is_complete_if_all_pairs_of_its_segments_are_edges(name):
    graph = GRAPHS[name]()
    inside = graph.segments.of_keys()[:, None] == graph.segments.of_queries()
    pairs = BipartiteGraph.from_edge_index(inside.nonzero().t(), *reversed(inside.shape),
                                           query_ptr=graph.query_ptr, key_ptr=graph.key_ptr)
    assert pairs.is_complete and graph.is_complete == (graph.num_edges == pairs.num_edges)
    assert not pairs.to('meta').is_complete  # unknown


# Set algebra #########################################################################


def test_set_algebra_drops_probabilities_and_keeps_segments(segments):
    for joined in (segments | segments, segments & segments):
        assert joined.edge_prob is None
        assert joined == segments.with_edge_prob(None)


@pytest.mark.parametrize('name', ['square', 'ragged_batch', 'graph_per_head', 'no_tokens', 'full'])
def test_self_loops(name):
    graph = GRAPHS[name]()
    mask, token = graph.to_mask(), torch.eye(graph.num_queries, dtype=torch.bool)
    assert graph.with_self_loops().validate().to_mask().equal(mask | token)
    assert graph.without_self_loops().validate().to_mask().equal(mask & ~token)
    assert graph.with_self_loops().num_segments == graph.num_segments


@pytest.mark.parametrize('name', ['square', 'ragged_batch', 'graph_per_head', 'no_tokens', 'full'])
def test_a_causal_graph_has_no_edge_to_a_later_token(name):
    graph = GRAPHS[name]()
    past = graph.causal().validate()
    assert past.to_mask().equal(graph.to_mask().tril())
    assert past.segments == graph.segments and past.causal() == past
    edge_prob = torch.rand(graph.num_edges)
    assert graph.with_edge_prob(edge_prob).causal() == past.with_edge_prob(
        edge_prob[graph.key <= graph.query])
    assert not past.is_reordered
    assert BipartiteGraph.from_edge_index(edges((1, 1), (0, 0)), 2).causal().is_reordered


def test_equality(segments):
    assert segments == copy.deepcopy(segments)
    assert segments != segments.with_edge_prob(None) and segments.with_edge_prob(None) != segments
    assert segments != segments.with_edge_prob(segments.edge_prob / 2)
    bare = segments.with_edge_prob(None)
    assert bare != bare - BipartiteGraph(edges((0, 0)), 5, query_ptr=bare.query_ptr,
                                         key_ptr=bare.key_ptr)
    assert bare != BipartiteGraph(bare.edge_index, 5)
    assert BipartiteGraph(edges(), 2, 3) != BipartiteGraph(edges(), 3, 2)
    assert segments != 'a graph'


# The rest ############################################################################


def test_to_moves_every_tensor(segments):
    moved = segments.to('meta')
    tensors = (moved.key, moved.query, moved.edge_prob, moved.query_ptr, moved.key_ptr)
    assert {tensor.device.type for tensor in tensors} == {'meta'} == {moved.device.type}
    assert (moved.num_queries, moved.num_edges, moved.num_segments) == (5, 4, 4)
    assert segments.to('cpu') == segments


def test_with_edge_prob_carries_gradient(graph):
    edge_prob = torch.tensor([0.2, 0.4, 0.6], requires_grad=True)
    weighted = graph.with_edge_prob(edge_prob)
    grad, = torch.autograd.grad(weighted.transpose().edge_prob @ torch.tensor([1., 2., 4.]),
                                edge_prob)
    assert weighted.edge_prob is edge_prob
    assert grad.tolist() == [2., 4., 1.]  # by key: edges 2, 0, 1


# Nothing is changed ##################################################################


OPERATIONS = {
    '|': lambda graph: graph | graph.transpose().transpose(),
    '&': lambda graph: graph & graph,
    '-': lambda graph: graph - graph,
    'isin': lambda graph: graph.isin(graph).logical_not_(),
    'with_self_loops': lambda graph: graph.with_self_loops(),
    'without_self_loops': lambda graph: graph.without_self_loops(),
    'causal': lambda graph: graph.causal(),
    'transpose': lambda graph: graph.transpose(),
    'batch': lambda graph: BipartiteGraph.batch([graph, graph]),
    'csc': lambda graph: graph.csc,
    'density': lambda graph: graph.density(per_segment=True).zero_(),
    'in_degree': lambda graph: graph.in_degree().zero_(),
    'out_degree': lambda graph: graph.out_degree().zero_(),
    'to_mask': lambda graph: graph.to_mask().zero_(),
    'to_networkx': lambda graph: graph.to_networkx().clear(),
    'to_scipy': lambda graph: graph.to_scipy().indices.fill(0),
    'validate': lambda graph: graph.validate(),
}


@pytest.mark.parametrize('operation', OPERATIONS.values(), ids=OPERATIONS)
def test_operations_change_no_graph(operation):
    graph = GRAPHS['ragged_batch']()
    graph = graph.with_edge_prob(torch.linspace(0, 1, graph.num_edges))
    before = copy.deepcopy(graph)
    operation(graph)
    assert graph == before
    assert graph.edge_index.equal(before.edge_index) and graph.indptr.equal(before.indptr)


def test_constructors_and_conversions_change_no_argument(graph):
    arguments = {
        'edge_index': edges((2, 2), (0, 1), (1, 0), (0, 1)),
        'edge_prob': torch.tensor([0.1, 0.2, 0.3, 0.2]),
        'query_ptr': torch.tensor([0, 2, 3]), 'key_ptr': torch.tensor([0, 2, 3]),
    }
    before = copy.deepcopy(arguments)
    BipartiteGraph.from_edge_index(num_queries=3, **arguments)
    torch.testing.assert_close(arguments, before, rtol=0, atol=0)
    matrix = sp.coo_array(([1., 0., 2., 3.], ([1, 0, 0, 1], [0, 1, 0, 0])), shape=(2, 2))
    before = matrix.copy()
    BipartiteGraph.from_scipy(matrix)
    assert all((getattr(matrix, part) == getattr(before, part)).all()
               for part in ('data', 'row', 'col'))
    weight = torch.rand(graph.num_edges, dtype=torch.float64)
    original = weight.clone()
    graph.to_scipy(weight).data.fill(7)
    assert weight.equal(original)


# What it refuses #####################################################################


def bipartite_digraph(*nx_edges: tuple[str, str], kind: type = nx.DiGraph) -> nx.Graph:
    """Keys a and b, queries c and d."""
    graph = kind()
    graph.add_nodes_from('ab', bipartite=0)
    graph.add_nodes_from('cd', bipartite=1)
    graph.add_edges_from(nx_edges)
    return graph


def build(*pairs: tuple[int, int], num_queries=3, num_keys=4, **kwargs) -> BipartiteGraph:
    return BipartiteGraph(edges(*pairs), num_queries, num_keys, **kwargs)


def merge(*pairs: tuple[int, int], num_queries=3, num_keys=4, **kwargs) -> BipartiteGraph:
    return BipartiteGraph.from_edge_index(edges(*pairs), num_queries, num_keys, **kwargs)


def with_prob(*edge_prob: float) -> BipartiteGraph:
    return build((1, 0), (3, 1), edge_prob=torch.tensor(edge_prob))


def with_ptr(query_ptr, key_ptr=None) -> BipartiteGraph:
    key_ptr = torch.tensor([0, 2, 4]) if key_ptr is None else key_ptr
    return build((1, 0), (3, 2), query_ptr=query_ptr, key_ptr=key_ptr)


def rows(indptr=(0, 2, 2, 3), key=(1, 3, 0), num_keys=4, dtype=torch.int64, **kwargs
         ) -> BipartiteGraph:
    return BipartiteGraph.from_csr(torch.tensor(indptr), torch.tensor(key, dtype=dtype), num_keys,
                                   **kwargs)


def half_bipartite() -> nx.DiGraph:
    graph = nx.DiGraph([(0, 1)])
    graph.nodes[0]['bipartite'] = 0
    return graph


# What is wrong in itself is in tests/test_arguments.py.
REFUSED = {
    # edge_index
    'rows_swapped': (lambda: merge((0, 3), (1, 2)), r"'edge_index\[1\]' .*row 0.*row 1"),
    'no_room': (lambda: build((0, 0), num_keys=0), r"'edge_index\[0\]'"),
    'unsorted_queries': (lambda: build((0, 1), (0, 0)), "'edge_index' must be sorted by query"),
    'unsorted_keys': (lambda: build((1, 0), (0, 0)), "'edge_index' must be sorted by query"),
    'duplicates': (lambda: build((1, 0), (1, 0)), "'edge_index'.*pair"),
    # edge_prob
    'prob_above': (lambda: with_prob(0.5, 1.1), r"'edge_prob' must be in \[0, 1\] \(got 1.1"),
    'prob_below': (lambda: with_prob(-0.1, 0.5), "'edge_prob' .*got -0.1"),
    'prob_nan': (lambda: with_prob(0.5, torch.nan), "'edge_prob' .*got nan"),
    'prob_short': (lambda: with_prob(0.5), r"'edge_prob' must.*2.*\(got shape \(1,\)"),
    'prob_later': (lambda: build((1, 0)).with_edge_prob(torch.ones(2)), "'edge_prob' must"),
    'prob_disagrees': (lambda: merge((1, 0), (1, 0), edge_prob=torch.tensor([0.1, 0.2])),
                       "'edge_prob' must be the same for all duplicates"),
    # segments
    'stray_edge': (lambda: build((3, 0), query_ptr=torch.tensor([0, 2, 3]),
                                 key_ptr=torch.tensor([0, 2, 4])),
                   'key 3 of segment 1 to query 0 of segment 0'),
    'stray_merged': (lambda: merge((0, 2), query_ptr=torch.tensor([0, 2, 3]),
                                   key_ptr=torch.tensor([0, 2, 4])),
                     'key 0 of segment 0 to query 2 of segment 1'),
    'ptr_falls': (lambda: with_ptr(torch.tensor([0, 4, 3])), r"'query_ptr' .*got \[0, 4, 3\]"),
    'ptr_begins': (lambda: with_ptr(torch.tensor([1, 2, 3])), "'query_ptr' must rise"),
    'ptr_ends': (lambda: with_ptr(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 3])),
                 r"'key_ptr' must rise from 0 to 4.*got \[0, 2, 3\]"),
    'ptr_long': (lambda: build(num_queries=900, query_ptr=torch.arange(900)),
                 r"got \[0, 1, 2, ..., 897, 898, 899\]"),
    'ptr_empty': (lambda: with_ptr(torch.tensor([], dtype=torch.long)), "'query_ptr' must"),
    'ptr_counts': (lambda: with_ptr(torch.tensor([0, 1, 2, 3])),
                   r"'query_ptr' and 'key_ptr' must .* segments \(got 3 and 2\)"),
    'perm_of_repeated': (lambda: merge((1, 0), (3, 0), (1, 0), (1, 0), return_perm=True),
                         r"only once.* \(got 4 edges, 2 of them different\); merge"),
    # rows
    'rows_key_large': (lambda: rows(key=(1, 4, 0)), r"'key' must.*0.*3 \(got 0.*4\)"),
    'rows_key_wraps': (lambda: rows(key=(1, 2**16 + 3, 0)), "'key' .*got 0 to 65539"),
    'rows_key_negative': (lambda: rows(key=(-1, 3, 0)), "'key' .*got -1 to 3"),
    'rows_key_uint16': (lambda: rows(key=(1, 65_535, 0), dtype=torch.uint16), "'key' .*65535"),
    'rows_unsorted': (lambda: rows(key=(3, 1, 0)), "'key' must strictly ascend"),
    'rows_repeated': (lambda: rows(key=(3, 3, 0)), "'key' must strictly ascend"),
    'rows_indptr_falls': (lambda: rows(indptr=(0, 2, 1, 3)), r"'indptr' .*got \[0, 2, 1, 3\]"),
    'rows_indptr_begins': (lambda: rows(indptr=(1, 2, 2, 3)), "'indptr' must rise"),
    'rows_indptr_ends': (lambda: rows(indptr=(0, 2, 2, 4)), "'indptr' must rise"),
    'rows_indptr_short': (lambda: rows(indptr=(0, 2, 2)), "'indptr' must rise"),
    'rows_indptr_empty': (lambda: BipartiteGraph.from_csr(torch.tensor([]).long(),
                                                          torch.tensor([]).long(), 0),
                          "'indptr' must have shape"),
    'rows_prob': (lambda: rows(edge_prob=torch.ones(2)), "'edge_prob' must"),
    'rows_stray': (lambda: rows(query_ptr=torch.tensor([0, 2, 3]), key_ptr=torch.tensor([0, 2, 4])),
                   'key 3 of segment 1 to query 0 of segment 0'),
    # masks, scipy, networkx
    'mask_float': (lambda: BipartiteGraph.from_mask(torch.ones(2, 2)), r"'mask' must.*got 1.0"),
    'mask_batch': (lambda: BipartiteGraph.from_mask(torch.ones(2, 3, 3, dtype=torch.bool)),
                   r"'mask' must.*\(2, 3, 3\)"),
    'topk_beyond': (lambda: BipartiteGraph.from_topk(torch.tensor([[0], [2]])),
                    "'indices' must.*.got 2.; pass 'num_keys'"),
    'topk_flat': (lambda: BipartiteGraph.from_topk(torch.tensor([0, 2])), "'indices' must"),
    'keep_short': (lambda: build((1, 0), (3, 1)).select_edges(torch.tensor([True])), "'keep' must"),
    'scipy_flat': (lambda: BipartiteGraph.from_scipy(sp.coo_array([1, 0, 1])), "'matrix' must"),
    'some_bipartite': (lambda: BipartiteGraph.from_networkx(half_bipartite()),
                       "'graph' must have the node attribute 'bipartite'"),
    'from_query': (lambda: BipartiteGraph.from_networkx(bipartite_digraph(('c', 'a'))),
                   r"'graph' must have only edges from keys .*got the edge \('c', 'a'\)"),
    'among_queries': (lambda: BipartiteGraph.from_networkx(
        bipartite_digraph(('c', 'd'), kind=nx.Graph)), "'graph' must have only edges from keys"),
    'among_keys': (lambda: BipartiteGraph.from_networkx(
        bipartite_digraph(('a', 'b'), kind=nx.Graph)), "'graph' must have only edges from keys"),
    'to_networkx': (lambda: build().to_networkx(), "'to_networkx' needs equal numbers"),
    # algebra
    'other_sizes': (lambda: build() | build(num_keys=5), "num_keys=4.*num_keys=5"),
    'other_segments': (lambda: build((1, 0), (3, 2)) & with_ptr(torch.tensor([0, 2, 3])),
                       "'&'.*num_segments=2"),
    'no_numbers': (lambda: build().to('meta') == build().to('meta'), "'==' needs .*meta"),
    'other_device': (lambda: build() - build().to('meta'), "'-'.*device .*got cpu.*meta"),
    'isin': (lambda: build().isin(build(num_queries=2)), "'isin' needs"),
    'loops': (lambda: build().with_self_loops(), "'with_self_loops' needs equal numbers"),
    'no_loops': (lambda: build().without_self_loops(), "'without_self_loops' needs"),
    'causal': (lambda: build().causal(), "'causal' needs equal numbers"),
    'loops_of_segments': (lambda: BipartiteGraph(
        edges(), 4, query_ptr=torch.tensor([0, 1, 4]), key_ptr=torch.tensor([0, 2, 4])
    ).with_self_loops(), "'with_self_loops' needs"),
    # batch
    'batch_devices': (lambda: BipartiteGraph.batch([build(), build().to('meta')]),
                      "'graphs' must.*device .got cpu.*meta"),
    'batch_of_nothing': (lambda: BipartiteGraph.batch([]), "'graphs' must contain at least one"),
    'batch_mixes': (lambda: BipartiteGraph.batch([build((1, 0), (3, 1)), with_prob(0.1, 0.2)]),
                    r"'graphs' must all have edge_prob, .* \(got 1 of 2"),
}


@pytest.mark.parametrize('call, match', REFUSED.values(), ids=REFUSED)
def test_refuses(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_validate_finds_what_an_unchecked_constructor_let_in():
    graph = BipartiteGraph(edges((1, 0), (0, 0)), 2, validate=False)
    with pytest.raises(ValueError, match="'key' must.*strictly.*got other keys"):
        graph.validate()


@pytest.mark.parametrize('operation', [operator.or_, operator.and_, operator.sub])
def test_algebra_refuses_a_wrong_type_on_either_side(operation, graph):
    with pytest.raises(TypeError, match='BipartiteGraph'):
        operation(graph, 3)
    with pytest.raises(TypeError):
        operation(3, graph)


def test_numbers_of_pairs_must_fit_in_int64():
    edge_index = torch.tensor([[2**40, 3], [2**40, 2**39]])
    for build in (BipartiteGraph, BipartiteGraph.from_edge_index):
        with pytest.raises(ValueError, match="'num_queries' times 'num_keys' must be below"):
            build(edge_index, 2**41)


# Order of the nodes ##################################################################


def orders(graph: BipartiteGraph) -> list[torch.Tensor]:
    """The nodes of each segment, upside down."""
    return [torch.tensor([node for first, last in zip(ptr, ptr[1:])
                          for node in reversed(range(first, last))], dtype=torch.long)
            for ptr in (graph.query_ptr.tolist(), graph.key_ptr.tolist())]


@pytest.mark.parametrize('name', GRAPHS)
def test_reordered_graph_has_the_same_edges(name):
    graph = GRAPHS[name]()
    graph = graph.with_edge_prob(torch.rand(graph.num_edges))
    query_order, key_order = orders(graph)
    reordered = graph.reorder(query_order, key_order).validate()
    matrix = graph.to_scipy(graph.edge_prob)[query_order.numpy()][:, key_order.numpy()]
    assert abs(reordered.to_scipy(reordered.edge_prob) - matrix).sum() == 0
    assert reordered.num_edges == graph.num_edges and reordered.is_reordered
    assert reordered.reorder(query_order.argsort(), key_order.argsort()) == graph


def test_nearby_order_finds_a_shuffled_band_in_each_segment():
    shuffles = [torch.randperm(n, generator=torch.Generator().manual_seed(n)) for n in (40, 1, 60)]
    graph = BipartiteGraph.batch([patterns.SlidingWindow(2).build(len(order)).reorder(order)
                                  for order in shuffles])
    nearby = graph.reorder(graph.nearby_order())
    assert (graph.query - graph.key).abs().max() > 30
    assert (nearby.query - nearby.key).abs().max() <= 4


@pytest.mark.parametrize('name', [name for name in GRAPHS if GRAPHS[name]().is_square])
def test_nearby_order_holds_each_token_once_in_its_segment(name):
    graph = GRAPHS[name]()
    order = graph.nearby_order()
    assert torch.equal(order.sort().values, torch.arange(graph.num_queries))
    assert graph.reorder(order).num_edges == graph.num_edges  # which refuses others


def test_order_must_be_a_permutation_within_segments(segments):
    query_order, key_order = torch.tensor([1, 0, 2, 4, 3]), torch.arange(5)
    with pytest.raises(ValueError, match="'query_order' must.*5 nodes"):
        segments.reorder(torch.tensor([0, 0, 2, 3, 4]), key_order)
    with pytest.raises(ValueError, match="'query_order' must keep each node in its segment"):
        segments.reorder(query_order.flip(0), key_order)
    with pytest.raises(ValueError, match="'reorder' needs equal numbers of keys and queries"):
        segments.reorder(query_order)
    with pytest.raises(ValueError, match="'nearby_order' needs equal numbers of keys and queries"):
        segments.nearby_order()


def test_masks_of_a_batch_are_segments_and_added_masks_mean_the_same():
    torch.manual_seed(0)
    mask = torch.rand(2, 3, 4, 5) < .4
    heads_first = [BipartiteGraph.from_mask(mask[b, h]) for h in range(3) for b in range(2)]
    expected = BipartiteGraph.batch(heads_first)
    assert BipartiteGraph.from_mask(mask) == expected
    for lowest in (-torch.inf, torch.finfo(torch.float).min):
        added = torch.zeros(mask.shape).masked_fill(~mask, lowest)
        assert BipartiteGraph.from_mask(added) == expected
    assert BipartiteGraph.from_mask(mask[:, :1]).num_segments == 2
    assert BipartiteGraph.from_mask(mask[0, 0]).num_segments == 1


@pytest.mark.parametrize('shape', [(2, 3, 2), (0, 3, 2), (2, 0, 2), (2, 3, 0), (0, 2), (3, 0)])
def test_from_topk_keeps_segments_without_keys(shape):
    graph = BipartiteGraph.from_topk(torch.arange(shape[-1]).expand(shape), 4).validate()
    batch, num_queries, _ = shape if len(shape) == 3 else (1, *shape)
    assert (graph.num_segments, graph.num_queries, graph.num_keys, graph.num_edges) == (
        batch, batch * num_queries, batch * 4, math.prod(shape))


def test_edges_are_selected_with_their_probabilities_and_gradients():
    prob = torch.rand(3, requires_grad=True)
    graph = BipartiteGraph(torch.tensor([[0, 1, 1], [0, 0, 1]]), 2, edge_prob=prob)
    kept = graph.select_edges(torch.tensor([True, False, True]))
    assert kept == BipartiteGraph(torch.tensor([[0, 1], [0, 1]]), 2, edge_prob=prob[[0, 2]])
    kept.edge_prob.sum().backward()
    assert prob.grad.tolist() == [1, 0, 1]
