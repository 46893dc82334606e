"""BipartiteGraph as a value: copies of every kind serve as the original does, and so do graphs that
were made in inference mode; files that were tampered with do not."""

import copy
import io
import os
import pickle
from collections.abc import Iterator

import pytest
import torch
import torch.multiprocessing
from torch import Tensor
from torch.utils import _pytree
from torch.utils.data import DataLoader

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from tests.graphs import GRAPHS
from tests.pairwise import pairwise


def variants(name: str) -> Iterator[BipartiteGraph]:
    """A graph as it was built and after use, without and with probabilities."""
    for with_prob in (False, True):
        for is_used in (False, True):
            graph = GRAPHS[name]()
            if with_prob:
                logit = torch.linspace(-1, 1, graph.num_edges, requires_grad=True)
                graph = graph.with_edge_prob(logit.sigmoid())
            if is_used:
                assert graph.csc and graph.edge_index.size(1) == graph.num_edges
            yield graph


def attend(graph: BipartiteGraph, **options) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    sizes = graph.num_queries, graph.num_keys, graph.num_keys
    inputs = [torch.randn(size, 2, 4, generator=generator, requires_grad=True) for size in sizes]
    return edge_attention(*inputs, graph, **{'backend': 'numba', **options}), inputs


def train(graph: BipartiteGraph, **options) -> list[Tensor]:
    """Return the output of attention, and its gradients."""
    out, inputs = attend(graph, **options)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]


def assert_serves_as(graph: BipartiteGraph, original: BipartiteGraph) -> None:
    assert graph == original and graph.is_reordered == original.is_reordered
    assert graph.edge_prob is None or not graph.edge_prob.requires_grad
    graph.check_unchanged()
    assert_same(train(graph), train(original))
    assert_same(graph.csc, original.csc)


def assert_same(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


# Copies ##############################################################################


def write(graph: BipartiteGraph) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(graph, file)
    file.seek(0)
    return file


COPIES = {
    'copy': copy.copy,
    'deepcopy': copy.deepcopy,
    'pickle': lambda graph: pickle.loads(pickle.dumps(graph)),
    'torch.load of weights': lambda graph: torch.load(write(graph), weights_only=True),
    'torch.load of anything': lambda graph: torch.load(write(graph), weights_only=False),
    'tree of tensors': lambda graph: _pytree.tree_map(lambda part: part.detach().clone(), graph),
}
every_copy = pytest.mark.parametrize('duplicate', COPIES.values(), ids=COPIES)


@every_copy
@pytest.mark.parametrize('name', GRAPHS)
def test_a_copy_serves_as_the_original(duplicate, name):
    for graph in variants(name):
        assert_serves_as(duplicate(graph), graph)


def test_a_deep_copy_shares_no_memory_and_a_shallow_one_all():
    graph = GRAPHS['square']()
    pointers = [part.data_ptr() for part in graph.csr]
    assert [part.data_ptr() for part in copy.copy(graph).csr] == pointers
    assert not {part.data_ptr() for part in copy.deepcopy(graph).csr} & set(pointers)


def test_in_place_changes_are_detected_in_every_copy_that_shares_memory():
    graph = GRAPHS['square']()
    shallow, deep = copy.copy(graph), copy.deepcopy(graph)
    graph.csr[1][0] = 5
    for changed in (graph, shallow):
        with pytest.raises(ValueError, match="'graph' must not be modified"):
            attend(changed)
    train(deep)


# Other processes #####################################################################


def pairs_of_variants() -> list[BipartiteGraph]:
    """Each twice in a row, for batches of two need either all probabilities or none."""
    return [graph for name in ('square', 'ragged_rectangles', 'no_edges', 'shuffled_duplicates')
            for graph in variants(name) for _ in range(2)]


needs_forks = pytest.mark.skipif(not hasattr(os, 'fork'), reason='starts processes by forks')


@pytest.mark.slow
@needs_forks
def test_workers_of_a_data_loader_batch_graphs():
    graphs = pairs_of_variants()
    loader = DataLoader(graphs, batch_size=2, collate_fn=BipartiteGraph.batch, num_workers=1,
                        multiprocessing_context='fork')
    batches = list(loader)
    assert len(batches) == len(graphs) // 2
    for batch, graph in zip(batches, graphs[::2]):
        assert_serves_as(batch, BipartiteGraph.batch([graph, graph]))


def attend_to_all(inbox, outbox) -> None:
    torch.set_num_threads(1)
    for graph in iter(inbox.get, None):
        with torch.no_grad():
            outbox.put((graph, attend(graph)[0]))


@pytest.mark.slow
@needs_forks
def test_graphs_go_through_queues_and_come_back():
    context = torch.multiprocessing.get_context('forkserver')  # to which all is sent by pickle
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=attend_to_all, args=(inbox, outbox), daemon=True)
    process.start()
    for graph in pairs_of_variants()[::2]:
        inbox.put(graph)
        returned, out = outbox.get(timeout=900)
        assert_serves_as(returned, graph)
        assert_same(out, attend(graph)[0].detach())
    inbox.put(None)
    process.join(timeout=600)
    assert process.exitcode == 0


# Files that were tampered with #######################################################


def long(*numbers) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long)


def uint16(*numbers) -> Tensor:
    """Return values as files have them."""
    return torch.tensor(numbers, dtype=torch.uint16).view(torch.int16)


FORGED = {
    'key out of range': dict(key=uint16(1, 4, 0, 2)),
    'key far out of range': dict(key=uint16(1, 65_535, 0, 2)),
    'key out of range that wraps around': dict(key=long(1, 2**16 + 3, 0, 2)),
    'negative key': dict(key=long(-1, 3, 0, 2)),
    'row not sorted': dict(key=uint16(3, 1, 0, 2)),
    'repeated key': dict(key=uint16(1, 1, 0, 2)),
    'too many keys': dict(key=uint16(1, 3, 0, 2, 3)),
    'matrix of keys': dict(key=uint16(1, 3, 0, 2).view(2, 2)),
    'float keys': dict(key=torch.tensor([1., 3., 0., 2.])),
    'complex keys': dict(key=torch.tensor([1, 3, 0, 2j])),
    'list of keys': dict(key=[1, 3, 0, 2]),
    'sparse keys': dict(key=torch.ones(2, 2).to_sparse()),
    'keys without bytes': dict(key=torch.zeros(1).long().expand(10**12)),
    'no keys': dict(key=None),
    'indptr falls': dict(indptr=long(0, 3, 2, 4)),
    'indptr falls below zero': dict(indptr=long(0, -2, 2, 4)),
    'indptr begins late': dict(indptr=long(1, 2, 2, 4)),
    'indptr ends beyond': dict(indptr=long(0, 2, 2, 5)),
    'indptr ends early': dict(indptr=long(0, 2, 2, 3)),
    'indptr of narrow numbers': dict(indptr=long(0, 2, 2, 4).int()),
    'empty indptr': dict(indptr=long()),
    'matrix of indptr': dict(indptr=long(0, 2, 2, 4).view(2, 2)),
    'fewer queries': dict(indptr=long(0, 2, 4)),
    'fewer keys': dict(num_keys=3),
    'more keys': dict(num_keys=5),
    'negative number of keys': dict(num_keys=-4),
    'float number of keys': dict(num_keys=4.),
    'text for the number of keys': dict(num_keys='4'),
    'more pairs than have numbers': dict(num_keys=2**62, query_ptr=long(0, 3),
                                         key_ptr=long(0, 2**62)),
    'segments of queries end beyond': dict(query_ptr=long(0, 1, 4)),
    'segments of keys fall': dict(key_ptr=long(0, 5, 4)),
    'more segments of keys': dict(key_ptr=long(0, 2, 3, 4)),
    'edge outside of its segment': dict(key_ptr=long(0, 3, 4), query_ptr=long(0, 1, 3)),
    'probabilities too few': dict(edge_prob=torch.ones(3)),
    'probability above one': dict(edge_prob=torch.tensor([.1, .2, .3, 7.])),
    'probabilities no numbers': dict(edge_prob='ones'),
}
READERS = {'pickle': lambda file: pickle.loads(file.getvalue()),
           'torch.load': lambda file: torch.load(file, weights_only=True)}
every_reader = pytest.mark.parametrize('reader', READERS)


def forge(graph: BipartiteGraph, state, reader: str, monkeypatch) -> io.BytesIO:
    """A file of ``graph`` that holds ``state``."""
    with monkeypatch.context() as patch:
        patch.setattr(BipartiteGraph, '__getstate__', lambda _: state)
        return io.BytesIO(pickle.dumps(graph)) if reader == 'pickle' else write(graph)


@pytest.fixture
def two_segments() -> BipartiteGraph:
    """Keys 1 and 3 of query 0, none of query 1, keys 0 and 2 of query 2, with probabilities."""
    return BipartiteGraph.from_csr(long(0, 2, 2, 4), torch.tensor([1, 3, 0, 2]), 4,
                                   edge_prob=torch.tensor([.1, .2, .3, .4]))


@every_reader
@pytest.mark.parametrize('changes', FORGED.values(), ids=FORGED)
def test_a_file_that_was_tampered_with_is_refused(changes, reader, two_segments, monkeypatch):
    state = two_segments.__getstate__()
    assert state.keys() > changes.keys()
    file = forge(two_segments, state | changes, reader, monkeypatch)
    with pytest.raises((TypeError, ValueError)):
        READERS[reader](file)


@every_reader
def test_a_file_without_a_part_is_refused(reader, two_segments, monkeypatch):
    state = two_segments.__getstate__()
    for name in state:
        parts = {other: part for other, part in state.items() if other != name}
        for bad in (parts, parts | {'other': state[name]}):
            file = forge(two_segments, bad, reader, monkeypatch)
            with pytest.raises(ValueError, match='must.*indptr, key, '):
                READERS[reader](file)


# Inference mode ######################################################################


SQUARE = GRAPHS['idle_tokens']()
MADE_IN_INFERENCE_MODE = {
    'built': lambda: BipartiteGraph(SQUARE.edge_index.as_tensor(), SQUARE.num_queries),
    'sorted': lambda: BipartiteGraph.from_edge_index(SQUARE.edge_index.flip(1), 10),
    'of rows': lambda: BipartiteGraph.from_csr(SQUARE.indptr.clone(), SQUARE.key),
    'of rows, unchecked': lambda: BipartiteGraph.from_csr(SQUARE.indptr.clone(), SQUARE.key,
                                                          validate=False),
    'of a mask': lambda: BipartiteGraph.from_mask(SQUARE.to_mask()),
    'batched': lambda: BipartiteGraph.batch([SQUARE, SQUARE]),
    'joined': lambda: SQUARE | SQUARE.with_self_loops(),
    'with probabilities': lambda: SQUARE.with_edge_prob(torch.rand(SQUARE.num_edges)),
    'transposed': lambda: SQUARE.transpose(),
    'moved': lambda: SQUARE.to('cpu'),
    'copied': lambda: copy.deepcopy(SQUARE),
    'pickled': lambda: pickle.loads(pickle.dumps(SQUARE)),
    'of a tree': lambda: _pytree.tree_map(lambda part: part, SQUARE),
}


@pytest.mark.parametrize('made, is_used, hops, backend', pairwise(
    MADE_IN_INFERENCE_MODE, [False, True], [1, 3], ['numba', 'gather']))
def test_a_graph_of_inference_mode_trains(made, is_used, hops, backend):
    make = MADE_IN_INFERENCE_MODE[made]
    options = {'backend': backend, 'hops': hops, 'teleport': 0.1 * (hops - 1)}
    with torch.inference_mode():
        graph = make()
        if is_used:
            assert graph.csc
            attend(graph, **options)
    assert not any(part.is_inference() for part in (*graph.csr, *graph.csc, graph.query_ptr,
                                                    graph.key_ptr))
    assert_same(train(graph, **options), train(make(), **options))


# Trees of tensors ####################################################################


@pytest.mark.parametrize('name', GRAPHS)
def test_a_graph_is_a_tree_of_its_tensors(name):
    for graph in variants(name):
        tensors, tree = _pytree.tree_flatten(graph)
        again = _pytree.tree_unflatten(tensors, tree)
        assert again == graph and again.is_reordered == graph.is_reordered
        assert (again.num_pairs, again.is_square) == (graph.num_pairs, graph.is_square)
        assert again.edge_prob is graph.edge_prob  # with its gradient
        again.validate()
        assert _pytree.tree_map(lambda tensor: tensor, graph) == graph
        assert _pytree.tree_map(lambda tensor: tensor, {'a': [graph]}) == {'a': [graph]}
        numbers = _pytree.tree_unflatten(range(len(tensors)), tree)  # which torch.vmap makes
        assert _pytree.tree_flatten(numbers) == ([*range(len(tensors))], tree)
        # What torch.export saves and loads, and compares with what code is called with.
        assert _pytree.treespec_loads(_pytree.treespec_dumps(tree)) == tree


@pytest.mark.parametrize('name', ['square', 'more_keys', 'ragged_rectangles', 'full'])
def test_vmap_over_queries_with_one_graph(name):
    graph = GRAPHS[name]()
    query = torch.randn(5, graph.num_queries, 2, 4)
    key = torch.randn(graph.num_keys, 2, 4)
    for in_dims in ((0, None, None), (0, None, None, None)):
        arguments = (query, key, key, graph)[:len(in_dims)]
        out = torch.vmap(lambda query, key, value, graph=graph: edge_attention(
            query, key, value, graph), in_dims=in_dims)(*arguments)
        expected = torch.stack([edge_attention(each, key, key, graph) for each in query])
        torch.testing.assert_close(out, expected)
