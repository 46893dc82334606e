"""The contract of every backend: what ``'reference'`` means, on every graph of the table."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph, ops
from graphattn.functional import edge_attention
from graphattn.functional.drive import Placement, drive
from graphattn.ops import LogitTerms
from graphattn.ops.attention import cpu_few_edges as few_edges
from graphattn.ops.cpu import schedule
from tests.forked import peak_bytes
from tests.graphs import GRAPHS, random_graph

HEADS, CHANNELS, VALUE_CHANNELS = 2, 4, 3
EDGE_VALUES = {'plain': {}, 'per_edge': {'edge_bias': (), 'edge_gate': ()},
               'per_edge_and_head': {'edge_bias': (HEADS,), 'edge_gate': (HEADS,)},
               'bias alone': {'edge_bias': ()}, 'gate alone': {'edge_gate': (HEADS,)}}
def skip_if_missing(backend: str) -> str:
    if backend == 'gather_ext':
        for package in ('torch_scatter', 'torch_sparse'):
            pytest.importorskip(package, reason=f"backend 'gather_ext' needs {package}")
    return backend


# Triton's kernels run on a GPU, or interpreted: triton/test_triton.py.
ON_CPUS = [name for name in ops.BACKENDS if name != 'triton']

# Dense ones form no weights and let NaN travel: test_sdpa.py.
DENSE = ('sdpa',)
BACKENDS = [name for name in ON_CPUS if name not in DENSE]

# Graphs of few edges, as all are here, have loops of their own; these are the loops of others.
IN_CHUNKS = 'numba, chunk by chunk'


def loops_of(backend: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if backend != IN_CHUNKS:
        return skip_if_missing(backend)
    monkeypatch.setattr(few_edges, '_MAX_EDGES', -1)
    monkeypatch.setattr(schedule, 'GRAIN', 1)
    return 'numba'


@pytest.fixture(params=[*BACKENDS, IN_CHUNKS])
def backend(request, monkeypatch) -> str:
    return loops_of(request.param, monkeypatch)


@pytest.fixture(params=[name for name in (*BACKENDS, IN_CHUNKS) if name != 'reference'])
def fast_backend(request, monkeypatch) -> str:
    return loops_of(request.param, monkeypatch)


def attention(backend: str, **arguments) -> tuple[Tensor, Tensor]:
    """Output, in one pass where the backend can, and weights."""
    out, weight = edge_attention(**arguments, backend=backend, return_attention_weights=True)
    return (out if ops.load(backend).attention is None
            else edge_attention(**arguments, backend=backend)), weight


def draw(graph: BipartiteGraph, edge_values: str = 'plain', *, channels: int = CHANNELS,
         value_channels: int = VALUE_CHANNELS, dtype: torch.dtype = torch.float64,
         ) -> dict[str, Tensor]:
    """The Tensor arguments of ``edge_attention``."""
    generator = torch.Generator().manual_seed(0)
    shapes = {'query': (graph.num_queries, HEADS, channels),
              'key': (graph.num_keys, HEADS, channels),
              'value': (graph.num_keys, HEADS, value_channels)}
    shapes |= {name: (graph.num_edges, *heads) for name, heads in EDGE_VALUES[edge_values].items()}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for name, shape in shapes.items()}


def attend(graph: BipartiteGraph, inputs: dict[str, Tensor], backend: str, *,
           autocast: bool = False, **options) -> dict[str, Tensor]:
    """Output, weights, and the gradients of both with respect to every input."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    with torch.autocast(graph.device.type, torch.bfloat16, enabled=autocast):
        out, weight = attention(backend, graph=graph, **leaves, **options)
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(result.shape, generator=generator, dtype=torch.float64)
                  for result in (out, weight)]
    # Small integers, which are exact in every dtype.
    cotangents = [cotangent.mul(2).round().to(out) for cotangent in cotangents]
    grads = torch.autograd.grad((out, weight), list(leaves.values()), cotangents)
    return {'out': out.detach(), 'weight': weight.detach(), **dict(zip(leaves, grads))}


def rounding(graph: BipartiteGraph, dtype: torch.dtype) -> float:
    """Return how far sums of values of order 1 may be off: one rounding for each of their terms."""
    max_terms = max([CHANNELS, VALUE_CHANNELS, *graph.in_degree().tolist(),
                     *graph.out_degree().tolist()])
    return torch.finfo(dtype).eps * 8 * max_terms


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], *,
                rtol: float = 1e-12, atol: float = 1e-12, check_dtype: bool = True) -> None:
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, check_dtype=check_dtype)


def in_double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in inputs.items()}


# One meaning #########################################################################


@pytest.mark.parametrize('name, edge_values', [
    (name, values) for name in GRAPHS for values in EDGE_VALUES
    if 'alone' not in values or name in ('hub', 'ragged_rectangles')])
def test_equals_reference(name, edge_values, fast_backend):
    graph = GRAPHS[name]()
    inputs = draw(graph, edge_values)
    assert_same(attend(graph, inputs, fast_backend), attend(graph, inputs, 'reference'))


@pytest.mark.parametrize('channels, value_channels', [(0, 3), (4, 0)])
@pytest.mark.parametrize('way', ON_CPUS)
def test_equals_reference_without_channels(channels, value_channels, way):
    graph = GRAPHS['square']()
    inputs = draw(graph, channels=channels, value_channels=value_channels)
    assert_same(train(graph, inputs, way), train(graph, inputs, 'reference'))
    if way not in DENSE:
        assert_same(attend(graph, inputs, way), attend(graph, inputs, 'reference'))


def test_the_weight_of_a_single_edge_has_no_gradient(backend):
    """Torch takes a strided tensor for a contiguous one where a size is 1."""
    graph = BipartiteGraph.from_edge_index(torch.tensor([[0], [0]]), 1)
    query, key, value = torch.randn(3, 1, HEADS, 4, requires_grad=True)
    _, weight = edge_attention(query, key, value, graph, backend=backend,
                               return_attention_weights=True)
    cotangent = torch.randn(2, 2 * HEADS)[1:, 1::2]
    assert (torch.autograd.grad(weight, query, cotangent)[0] == 0).all()


# Precision ###########################################################################


@pytest.mark.parametrize('edge_values', EDGE_VALUES)
def test_autocast_changes_nothing(backend, edge_values):
    graph = GRAPHS['square']()
    inputs = draw(graph, edge_values, dtype=torch.float32)
    expected = attend(graph, inputs, backend)
    results = attend(graph, inputs, backend, autocast=True)
    tolerance = rounding(graph, torch.float32)
    assert_same(results, expected, rtol=tolerance, atol=tolerance)


# Nobody there ########################################################################


# What 'auto' gives is held to the same, whichever way it takes.
EVERY_WAY = ['auto', *BACKENDS]


def train(graph: BipartiteGraph, inputs: dict[str, Tensor], way: str, **options
          ) -> dict[str, Tensor]:
    """Output and gradients."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    out = edge_attention(graph=graph, **leaves, **options, backend=skip_if_missing(way))
    cotangent = torch.arange(out.numel()).view(out.shape).remainder(5).sub(2).to(out)
    return {'out': out.detach(), **dict(zip(leaves, torch.autograd.grad(
        out, list(leaves.values()), cotangent)))}


# Derivatives #########################################################################


@pytest.mark.parametrize('way', [*EVERY_WAY, *DENSE])
def test_batched_gradients_equal_single_gradients_or_are_refused(way):
    graph = GRAPHS['square']()
    leaves = {name: x.requires_grad_() for name, x in draw(graph).items()}
    out = edge_attention(graph=graph, **leaves, backend=skip_if_missing(way))
    cotangents = torch.stack([torch.ones_like(out), out.detach()])
    try:
        together = torch.autograd.grad(out, list(leaves.values()), cotangents, retain_graph=True,
                                       is_grads_batched=True)
    except NotImplementedError as error:
        assert 'is_grads_batched' in str(error) and "backend='gather'" in str(error)
        assert way != 'gather'
        return
    for row, cotangent in enumerate(cotangents):
        alone = torch.autograd.grad(out, list(leaves.values()), cotangent, retain_graph=True)
        torch.testing.assert_close([grad[row] for grad in together], [*alone])


@pytest.mark.parametrize('way', [*EVERY_WAY, *DENSE])
def test_the_gradient_at_an_output_is_that_of_what_follows(way):
    graph = GRAPHS['square']()
    leaves = {name: x.requires_grad_() for name, x in draw(graph).items()}
    out = edge_attention(graph=graph, **leaves, backend=skip_if_missing(way))
    grad, = torch.autograd.grad(out.square().sum(), out, create_graph=True)
    assert torch.equal(grad, 2 * out)


# Softcaps and sinks ##################################################################


LOGIT_TERMS = {
    'low softcap': dict(softcap=0.5), 'high softcap': dict(softcap=50.),
    'sinks': dict(sink=[0.3, -2.]),
    'sinks above and below all logits': dict(sink=[1e4, -1e4]),
    'no sink and both terms': dict(sink=[-math.inf, 1.], softcap=2.)}
FEW_GRAPHS = ['ragged_rectangles', 'idle_nodes', 'hub', 'one_token', 'no_edges']


def draw_with(graph: BipartiteGraph, terms: str, *, num_kv_heads: int = HEADS,
              dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the Tensor arguments with sinks, where one query is biased away from all of its keys,
    and the softcap."""
    inputs = draw(graph, 'per_edge_and_head', dtype=dtype)
    inputs |= {name: inputs[name][:, :num_kv_heads] for name in ('key', 'value')}
    inputs['edge_bias'][::3] = -torch.inf
    inputs['edge_bias'][graph.query == 2] = -torch.inf
    options = dict(LOGIT_TERMS[terms])
    sink = options.pop('sink', None)
    return inputs | ({} if sink is None else {'sink': torch.tensor(sink).to(dtype)}), options


@pytest.mark.parametrize('terms', LOGIT_TERMS)
@pytest.mark.parametrize('name', FEW_GRAPHS)
def test_softcaps_and_sinks_equal_reference(name, terms, fast_backend):
    graph = GRAPHS[name]()
    inputs, options = draw_with(graph, terms, num_kv_heads=1)
    assert_same(attend(graph, inputs, fast_backend, **options),
                attend(graph, inputs, 'reference', **options))


@pytest.mark.parametrize('terms', LOGIT_TERMS)
@pytest.mark.parametrize('hops', [3, math.inf])
def test_softcaps_and_sinks_over_hops_equal_reference(hops, terms, fast_backend):
    graph = GRAPHS['ragged_batch']()
    inputs, options = draw_with(graph, terms, num_kv_heads=1)
    options |= dict(hops=hops, teleport=0.25)
    assert_same(train(graph, inputs, fast_backend, **options),
                train(graph, inputs, 'reference', **options), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('hops', [1, 2])
def test_dropout_beside_sinks_is_that_of_reference(hops, fast_backend, restored_rng):
    graph, results = GRAPHS['ragged_batch'](), []
    inputs, options = draw_with(graph, 'no sink and both terms')
    for way in (fast_backend, 'reference'):
        torch.manual_seed(3)
        results.append(train(graph, inputs, way, **options, hops=hops, dropout_p=0.4))
    assert_same(*results)


@pytest.mark.parametrize('backend', BACKENDS)
def test_the_gradient_of_a_sink_that_takes_little_is_as_exact_as_that_of_others(backend):
    """The weight of a sink is not computed as what the others leave."""
    graph, backend = GRAPHS['square'](), skip_if_missing(backend)
    inputs = draw(graph, dtype=torch.float32) | {'sink': torch.tensor([-16., -40.])}
    for run in (attend, partial(train, hops=2)):
        result, expected = (run(graph, x, way)['sink'] for x, way in (
            (inputs, backend), (in_double(inputs), 'reference')))
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=0)


def test_sinks_of_heads_with_graphs_of_their_own_are_folded_with_them():
    graphs, sink = [random_graph(5, 7, 0.5, seed) for seed in range(HEADS)], torch.tensor([1., -1.])
    inputs = draw(graphs[0])
    out, _ = drive(**inputs, graph=BipartiteGraph.batch(graphs), hops=1, teleport=0.,
                   terms=LogitTerms(scale=None, sink=sink), placement=Placement(HEADS))
    alone = [edge_attention(graph=graph, sink=sink[[head]],
                            **{name: tensor[:, [head]] for name, tensor in inputs.items()})
             for head, graph in enumerate(graphs)]
    assert_same({'out': out}, {'out': torch.cat(alone, dim=1)})


@pytest.mark.parametrize('options, match', [
    (dict(softcap=2.), "'sdpa'.*softcap .got.*'auto'"),
    (dict(sink=torch.zeros(HEADS)), "'sdpa'.*no.*'auto'")])
def test_auto_passes_a_backend_by_that_lacks_a_term(options, match):
    graph = GRAPHS['full']()
    inputs = draw(graph)
    assert_same({'out': edge_attention(graph=graph, **inputs, **options)},
                {'out': edge_attention(graph=graph, **inputs, **options, backend='reference')})
    with pytest.raises(ValueError, match=match):
        edge_attention(graph=graph, **inputs, **options, backend='sdpa')


# Dropout #############################################################################


@pytest.mark.parametrize('hops', [1, 3])
@pytest.mark.parametrize('name', ['square', 'ragged_batch', 'idle_nodes'])
def test_dropout_of_a_seed_is_that_of_reference(name, hops, backend, restored_rng):
    graph, results = GRAPHS[name](), []
    if hops > 1 and not graph.is_square:
        pytest.skip('it has one hop')
    inputs = draw(graph, 'per_edge_and_head')
    for each, needs_weights in ((backend, True), ('reference', True), (backend, False)):
        torch.manual_seed(3)
        results.append(edge_attention(graph=graph, **inputs, hops=hops, dropout_p=0.4,
                                      backend=each, return_attention_weights=needs_weights))
    (out, weight), expected, fused = results
    assert_same(dict(zip(('out', 'weight', 'fused'), (out, weight, fused))),
                dict(zip(('out', 'weight', 'fused'), (*expected, expected[0]))))


def test_no_dropout_draws_nothing(backend):
    graph = GRAPHS['square']()
    state = torch.get_rng_state()
    attend(graph, draw(graph), backend, dropout_p=0.)
    assert torch.get_rng_state().equal(state)


# Memory ##############################################################################


def forward_and_backward(num_nodes, backend, hops):
    query = torch.arange(num_nodes).repeat_interleave(3)
    key = (query + torch.tensor([0, 1, num_nodes // 2]).repeat(num_nodes)) % num_nodes
    graph = BipartiteGraph.from_edge_index(torch.stack([key, query]), num_nodes)
    tensors = [torch.randn(num_nodes, 2, 16, requires_grad=True) for _ in range(3)]
    edge_attention(*tensors, graph, hops=hops, teleport=.1 * (hops - 1),
                   backend=backend).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize('backend, hops', [('gather', 1), ('numba', 1), ('numba', 5)])
@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='reads Linux /proc')
def test_memory_is_linear_in_edges(backend, hops):
    forward_and_backward(100, backend, hops)  # compiles
    most = peak_bytes(lambda: forward_and_backward(20_000, backend, hops))
    assert most < 200e6  # the pairs: 1.6e9
