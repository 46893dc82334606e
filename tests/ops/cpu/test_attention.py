"""What the fused CPU kernel promises beyond the contract of every backend."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph, ops
from graphattn.functional import edge_attention
from graphattn.ops import LogitTerms
from graphattn.ops.attention import cpu_few_edges as few_edges
from graphattn.ops.attention import schema as operators
from graphattn.ops.cpu import schedule
from graphattn.ops.cpu.chunks import KeyGrads
from graphattn.ops.cpu.schedule import Edges
from graphattn.ops.weights import schema as dot_operators
from graphattn.patterns import RandomKeys
from tests.forked import peak_bytes
from tests.graphs import GRAPHS, random_graph
from tests.ops import numbers
from tests.ops.numbers import HEADS, assert_same, saved_bytes, with_grads

draw = partial(numbers.draw, is_kernel=True)


@pytest.fixture(params=['chunk by chunk', 'few edges'])
def loops(request, monkeypatch):
    """Both kinds of loops, whichever a graph is for."""
    most = -1 if request.param == 'chunk by chunk' else 2**62
    monkeypatch.setattr(few_edges, '_MAX_EDGES', most)
    monkeypatch.setattr(few_edges, '_EDGES_OF_A_ROW', 2**31)


by_both = pytest.mark.usefixtures('loops')


def edges_by_query(graph: BipartiteGraph) -> Edges:
    return Edges.by_query(SimpleNamespace(indptr=graph.indptr, edge_key=graph.key,
                                          query_ptr=graph.query_ptr, key_ptr=graph.key_ptr))


def attend(graph: BipartiteGraph, inputs: dict[str, Tensor], backend: str = 'numba', *,
           scale: float = 0.3, dropout_p: float = 0.) -> Tensor:
    query, key, value = (inputs[name] for name in ('query', 'key', 'value'))
    terms = LogitTerms(inputs.get('edge_bias'), inputs.get('edge_gate'), scale, dropout_p)
    kernel = ops.load(backend)
    if kernel.attention is not None:
        return kernel.attention(query, key, value, graph, terms)
    return kernel.weighted_sum(kernel.attention_weights(query, key, graph, terms), value, graph)


def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    return ops.load('numba').edge_dot(query, key, graph)


# One meaning #########################################################################


@by_both
@pytest.mark.parametrize('num_threads', [1, 2, 7])
@pytest.mark.parametrize('name', ['hub', 'ragged_batch', 'graph_per_head', 'no_tokens'])
def test_any_number_of_threads_equals_reference(name, num_threads, with_threads):
    graph = GRAPHS[name]()
    inputs = draw(graph, 'shared')
    results = with_threads(num_threads, lambda: with_grads(attend(graph, inputs), inputs))
    assert_same(results, with_grads(attend(graph, inputs, 'reference'), inputs))


def long_graph() -> BipartiteGraph:
    """Return a graph whose keys are taken in several chunks, beside a segment that is one."""
    long, short = RandomKeys(60).build(150, 3000, seed=0), RandomKeys(5).build(40, 30, seed=0)
    without_first = BipartiteGraph.from_edge_index(
        long.edge_index.as_tensor()[:, (long.query > 20) | (long.key > 2000)], 150, 3000)
    return BipartiteGraph.batch([without_first, short])


@pytest.mark.slow
@pytest.mark.parametrize('heads', [1, 2])
@pytest.mark.parametrize('edge_values', ['plain', 'shared'])
def test_chunks_of_keys_equal_gather(edge_values, heads, with_threads):
    graph = long_graph()
    inputs = draw(graph, edge_values, channels=64, value_channels=48, heads=heads)
    if 'edge_bias' in inputs:  # a first chunk that adds nothing, and one that fades away
        bias = inputs['edge_bias'].data
        bias[(graph.query < 50) & (graph.key < 1500)] = -torch.inf
        bias[(graph.query >= 50) & (graph.key > 1000)] += 300
    with torch.no_grad():
        inputs['query'] *= 0.1
    expected = with_grads(attend(graph, inputs, 'gather'), inputs)
    for num_threads in (1, 3):
        assert_same(with_threads(num_threads, lambda: with_grads(attend(graph, inputs), inputs)),
                    expected)


@pytest.mark.slow
@pytest.mark.parametrize('largest', [torch.inf, 0.], ids=['all edges', 'half without a gradient'])
@pytest.mark.parametrize('heads', [1, 2])
def test_edge_dot_in_chunks(heads, largest, with_threads):
    graph = long_graph()
    inputs = draw(graph, channels=200, heads=heads)
    query, key = inputs['query'], inputs['key']
    expected = (query[graph.query] * key[graph.key]).sum(-1)
    actual = with_threads(2, lambda: edge_dot(query, key, graph))
    weight = torch.randn(expected.shape, dtype=expected.dtype).clamp(max=largest)
    weight[graph.query == graph.query.amax()] *= 0
    for ours, theirs in zip((actual, *torch.autograd.grad((actual * weight).sum(), (query, key))),
                            (expected,
                             *torch.autograd.grad((expected * weight).sum(), (query, key)))):
        assert torch.allclose(ours, theirs, atol=1e-11)


@pytest.mark.parametrize('name', ['square', 'ragged_rectangles', 'hub', 'no_tokens'])
def test_edge_dot_and_its_gradients(name, many_parts):
    graph = GRAPHS[name]()
    inputs = {name: tensor for name, tensor in draw(graph).items() if name != 'value'}
    expected = (inputs['query'][graph.query] * inputs['key'][graph.key]).sum(-1)
    assert_same(with_grads(edge_dot(**inputs, graph=graph), inputs),
                with_grads(expected, inputs))


# Precision ###########################################################################


@by_both
@pytest.mark.slow
def test_exponential_is_within_two_roundings():
    x = torch.linspace(-86, 0, 5_001)
    graph = BipartiteGraph.from_mask(torch.ones(1, x.numel(), dtype=torch.bool))
    inputs = {'query': torch.zeros(1, 1, 1), 'key': torch.zeros(x.numel(), 1, 1),
              'value': torch.eye(x.numel())[:, ::50].unsqueeze(1), 'edge_bias': x.unsqueeze(1)}
    weight = x.double().softmax(0)[::50]
    torch.testing.assert_close(attend(graph, inputs)[0, 0].double(), weight, rtol=1e-6, atol=1e-38)


# Dropout #############################################################################


def dropped(graph: BipartiteGraph, inputs: dict[str, Tensor], seed: int, p: float) -> Tensor:
    torch.manual_seed(seed)
    return attend(graph, inputs, dropout_p=p)


@by_both
def test_dropout_of_a_seed_repeats_on_any_number_of_threads(with_threads, restored_rng):
    graph = GRAPHS['hub']()
    inputs = draw(graph)
    first, same, other = (with_threads(threads, partial(dropped, graph, inputs, seed, 0.5))
                          for threads, seed in ((1, 0), (3, 0), (1, 1)))
    assert first.equal(same) and not first.equal(other)


# Threads #############################################################################


@by_both
@pytest.mark.slow
@pytest.mark.parametrize('make', [partial(random_graph, 300, 200, 0.2), partial(long_graph)],
                         ids=['one chunk', 'chunks'])
@pytest.mark.parametrize('heads', [1, 3])
def test_bit_for_bit_the_same_in_any_number_of_threads(make, heads, with_threads):
    graph = make()
    inputs = draw(graph, dtype=torch.float32, channels=64, value_channels=48, heads=heads)

    def train():
        dot = edge_dot(inputs['query'], inputs['key'], graph)
        leaves = {name: inputs[name] for name in ('query', 'key')}
        return with_grads(attend(graph, inputs), inputs), with_grads(dot, leaves)

    expected = with_threads(1, train)
    for num_threads in (2, 2, 3, 4):
        assert_same(with_threads(num_threads, train), expected, tolerance=0)


@by_both
def test_many_python_threads_at_once(with_threads):
    graph = random_graph(100, 100, 0.2)
    inputs = draw(graph)
    expected = with_threads(2, lambda: attend(graph, inputs))
    with ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: attend(graph, inputs), range(40)):
            assert out.equal(expected)


@pytest.mark.parametrize('name', GRAPHS)
@pytest.mark.parametrize('num_threads', [1, 2, 5])
def test_every_query_and_head_is_the_work_of_one_thread(name, num_threads, with_threads):
    graph = GRAPHS[name]()
    edges = edges_by_query(graph)
    items = with_threads(num_threads, lambda: schedule.cut(edges, (HEADS, 8)))
    times = torch.zeros(graph.num_queries, HEADS)
    for head, first, last, *_ in items:
        times[first:last, head] += 1
    assert (times == 1).all()
    sizes = [int(graph.indptr[last] - graph.indptr[first]) for _, first, last, *_ in items]
    longest = int(graph.in_degree().max()) if graph.num_queries else 0
    if num_threads > 1 and sizes:
        assert max(sizes) <= graph.num_edges * HEADS / (16 * num_threads) + longest + 1


@pytest.mark.parametrize('name', GRAPHS)
def test_items_that_share_keys_have_rows_of_their_own(name, many_parts):
    graph = GRAPHS[name]()
    edges = edges_by_query(graph)
    inputs = [torch.zeros(graph.num_keys, HEADS, 3)]
    grads = KeyGrads.of(edges, (HEADS, 8), inputs, torch.float)
    writers = {}
    for head, _, _, segment, row in grads.items.tolist():
        writers.setdefault((head, segment), []).append(row)
    rows = sorted((row, int(graph.key_ptr[segment + 1] - graph.key_ptr[segment]))
                  for (_, segment), own in writers.items() for row in own[1:])
    assert all(own[0] == -1 for own in writers.values())
    assert [row for row, _ in rows] == [sum(n for _, n in rows[:i]) for i in range(len(rows))]
    assert sum(n for _, n in rows) == grads.shared[0].size(0)


# Memory and autograd #################################################################


@by_both
@pytest.mark.parametrize('edge_values', ['plain', 'shared'])
def test_bytes_saved_for_backward(edge_values):
    graph = random_graph(60, 50, 0.2)
    inputs = draw(graph, edge_values, dtype=torch.float32)
    saved = saved_bytes(lambda: attend(graph, inputs))
    given = sum(tensor.nbytes for tensor in (*inputs.values(), attend(graph, inputs)))
    assert given <= saved <= given + 8 * graph.num_queries * HEADS + 12 * graph.num_edges


@by_both
@pytest.mark.parametrize('changed', ['key', 'edge_bias'])
def test_a_change_between_the_passes_is_an_error(changed):
    graph = GRAPHS['square']()
    leaves = draw(graph, 'shared')
    inputs = {name: leaf * 1 for name, leaf in leaves.items()}
    out = attend(graph, inputs)
    with torch.no_grad():
        inputs[changed].add_(0)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        out.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize('edge_values', ['plain', 'shared'])
def test_operators_keep_torchs_rules(edge_values):
    graph = GRAPHS['square']()
    inputs = {'edge_bias': None, 'edge_gate': None, **draw(graph, edge_values)}
    edges = (*graph.csr, *graph.csc, graph.query_ptr, graph.key_ptr)
    inputs['feature_query'] = torch.randn(*inputs['query'].shape[:2], 3, dtype=torch.double,
                                          requires_grad=True)
    inputs['edge_attr'] = torch.randn(graph.num_edges, 3, dtype=torch.double, requires_grad=True)
    inputs['sink'] = torch.randn(1, HEADS, dtype=torch.double, requires_grad=True)
    names = ('query', 'key', 'value', 'feature_query', 'edge_attr', 'edge_bias', 'edge_gate',
             'sink')
    torch.library.opcheck(operators.edge_attention,
                          (*(inputs[name] for name in names), *edges, None, 0.3, 2., 0.))
    torch.library.opcheck(dot_operators.edge_dot, (inputs['query'], inputs['key'], *edges))


def train(num_nodes, degree):
    query = torch.arange(num_nodes).repeat_interleave(degree)
    key = (query + 4001 * torch.arange(degree).repeat(num_nodes)) % num_nodes
    graph = BipartiteGraph.from_edge_index(torch.stack([key, query]), num_nodes)
    del query, key
    tensors = [torch.randn(num_nodes, 4, 32, requires_grad=True) for _ in range(3)]
    edge_attention(*tensors, graph, backend='numba').sum().backward()


@pytest.mark.slow
@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='reads Linux /proc')
def test_a_long_sequence_trains_in_little_memory():
    train(128, 32)  # compiles
    assert peak_bytes(lambda: train(32_768, 32)) < 300 * 2**20


def test_gradients_of_half_precision_are_not_cast_on_the_way():
    query = torch.randn(12, HEADS, 4, dtype=torch.bfloat16, requires_grad=True)
    out = edge_attention(query, query, query, GRAPHS['square'](), backend='numba')
    assert out.dtype == torch.bfloat16 and 'ToCopy' not in out.grad_fn.name()
