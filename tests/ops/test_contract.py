"""Contract of every backend beside its values, and what torch may do to it."""

import math
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.gradcheck import GradcheckError

from graphattn import BipartiteGraph, ops
from graphattn.functional import attention_diffusion, attention_weights, edge_attention
from graphattn.patterns import Full
from tests.graphs import GRAPHS, random_graph
from tests.ops.test_backends import BACKENDS, DENSE, ON_CPUS, draw, skip_if_missing

ALL = ['auto', *ON_CPUS]
# What torch can neither trace nor wrap: a deliberate graph break each, and the eager numbers.
BREAKS_GRAPHS = ('gather_ext', *DENSE)
WITH_ALL_DERIVATIVES = ('auto', 'gather', 'reference')


@pytest.fixture(params=ALL)
def backend(request) -> str:
    return skip_if_missing(request.param)


def leaves(graph: BipartiteGraph, edge_values: str = 'plain') -> dict[str, Tensor]:
    return {name: tensor.requires_grad_() for name, tensor in draw(graph, edge_values).items()}


def with_grads(out: Tensor, inputs: dict[str, Tensor]) -> list[Tensor]:
    return [out, *torch.autograd.grad(out.square().sum(), list(inputs.values()))]


def assert_same(actual, expected, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# Nothing to attend to ################################################################


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('name', ['more_keys', 'more_queries', 'ragged_rectangles', 'no_keys'])
def test_sums_by_weights_of_graphs_that_are_not_square(backend, name):
    graph = GRAPHS[name]()
    kernel = ops.load(skip_if_missing(backend))
    inputs = {'weight': torch.rand(graph.num_edges, 2, dtype=torch.double).requires_grad_(),
              'value': torch.randn(graph.num_keys, 2, 3, dtype=torch.double).requires_grad_()}
    expected = ops.load('reference').weighted_sum(**inputs, graph=graph)
    assert expected.shape == (graph.num_queries, 2, 3)
    assert_same(with_grads(kernel.weighted_sum(**inputs, graph=graph), inputs),
                with_grads(expected, inputs))


# torch.compile #######################################################################


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_compiled_code_equals_eager_code(backend, clean_dynamo):
    graph, edge_values = random_graph(9, 11), 'per_edge_and_head'
    inputs = leaves(graph, edge_values)
    if backend == 'sdpa':
        inputs.pop('edge_gate', None)

    def attend(graph, tensors):
        return edge_attention(graph=graph, **tensors, backend=backend)

    expected = with_grads(attend(graph, inputs), inputs)
    # What is left between breaks is torch's own, and so is all of the reference.
    tracer = 'eager' if backend in (*BREAKS_GRAPHS, 'reference') else 'aot_eager'
    compiled = torch.compile(attend, backend=tracer, fullgraph=backend not in BREAKS_GRAPHS)
    others = [] if tracer == 'eager' else [random_graph(9, 11), random_graph(7, 5)]
    for each in (graph, *others):
        if each.num_queries != 9:
            inputs = leaves(each, edge_values)
            inputs.pop('edge_gate', None)
            expected = with_grads(attend(each, inputs), inputs)
        assert_same(with_grads(compiled(each, inputs), inputs), expected)


@pytest.mark.slow
def test_compiled_hops_and_weights(clean_dynamo):
    graph = GRAPHS['ragged_batch']()
    inputs = leaves(graph)
    teleport = torch.full((), 0.3, dtype=torch.double)

    def attend(tensors):
        out = edge_attention(graph=graph, **tensors, hops=3, teleport=teleport)
        alpha = attention_weights(tensors['query'], tensors['key'], graph)
        return out + attention_diffusion(alpha, tensors['value'], graph, hops=2, teleport=0.2)

    assert_same(with_grads(torch.compile(attend, fullgraph=True, backend='aot_eager')(inputs),
                           inputs), with_grads(attend(inputs), inputs))


@pytest.mark.slow
def test_compiled_code_goes_to_the_limit_without_compiling_its_steps(clean_dynamo):
    graph = random_graph(9, 9, 0.4)
    inputs = leaves(graph)

    def attend(inputs):
        return edge_attention(graph=graph, **inputs, hops=math.inf, teleport=0.3).sin()

    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        actual = with_grads(torch.compile(attend, backend='aot_eager')(inputs), inputs)
    assert_same(actual, with_grads(attend(inputs), inputs), 0.)
    reason, = torch._dynamo.utils.counters['graph_break']
    assert 'convergence depends on tensor values' in reason


@pytest.mark.slow
@pytest.mark.parametrize('num_tokens, with_bias', [(8, True), (0, False)])
def test_compiled_attention_along_all_pairs(num_tokens, with_bias, clean_dynamo):
    graph = Full().build(num_tokens)
    inputs = leaves(graph)
    bias = torch.linspace(-1, 1, graph.num_edges, dtype=torch.double) if with_bias else None

    def attend(tensors):
        return edge_attention(graph=graph, **tensors, edge_bias=bias)

    compiled = torch.compile(attend, fullgraph=True, backend='aot_eager')
    assert_same(with_grads(compiled(inputs), inputs), with_grads(attend(inputs), inputs))


@pytest.mark.slow
@pytest.mark.parametrize('hops', [1, 2])
def test_code_is_compiled_for_any_sizes(hops, clean_dynamo):
    def attend(graph, tensors):
        return edge_attention(graph=graph, **tensors, hops=hops, teleport=0.1 * (hops - 1))

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend='aot_eager')
    graphs = [random_graph(size, size) for size in (9, 7)]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for graph in graphs:
            inputs = leaves(graph)
            assert_same(with_grads(compiled(graph, inputs), inputs),
                        with_grads(attend(graph, inputs), inputs))


@pytest.mark.slow
def test_machine_code_of_inductor(clean_dynamo):
    graph = random_graph(40, 30)
    inputs = leaves(graph, 'per_edge')

    def attend(tensors):
        query = tensors['query'].sin()
        out = edge_attention(graph=graph, **{**tensors, 'query': query})
        return out.cos()

    assert_same(with_grads(torch.compile(attend, fullgraph=True)(inputs), inputs),
                with_grads(attend(inputs), inputs))


# Other derivatives than that of a backward pass ######################################


@contextmanager
def right_or_refused(backend: str, right: tuple[str, ...] = WITH_ALL_DERIVATIVES):
    """A backend that has not all derivatives may say so; none may give another number."""
    try:
        yield
    except RuntimeError as error:  # of which NotImplementedError is one kind
        if backend in right or isinstance(error, GradcheckError):
            raise


def of_query(graph: BipartiteGraph, backend: str):
    inputs = draw(graph)

    def attend(query: Tensor) -> Tensor:
        return edge_attention(query, inputs['key'], inputs['value'], graph, backend=backend)

    return attend, inputs['query']


@pytest.mark.parametrize('name', ['square', 'full', 'ragged_rectangles'])
def test_forward_mode_is_right_or_refused(backend, name):
    attend, query = of_query(GRAPHS[name](), backend)
    tangent = torch.randn_like(query)
    with right_or_refused(backend):
        _, actual = torch.func.jvp(attend, (query,), (tangent,))
        step = 1e-6 * tangent
        expected = (attend(query + step) - attend(query - step)) / 2e-6
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-8)


def test_dual_numbers_are_right_or_refused(backend):
    attend, query = of_query(GRAPHS['square'](), backend)
    tangent = torch.randn_like(query)
    expected = torch.func.jvp(of_query(GRAPHS['square'](), 'gather')[0], (query,), (tangent,))[1]
    with right_or_refused(backend), torch.autograd.forward_ad.dual_level():
        out = attend(torch.autograd.forward_ad.make_dual(query, tangent))
        assert_same(torch.autograd.forward_ad.unpack_dual(out).tangent, expected)


@pytest.mark.parametrize('transform', ['jacfwd', 'jacrev', 'hessian'])
def test_torch_func_is_right_or_refused(backend, transform):
    attend, query = of_query(random_graph(4, 4, 0.6), backend)

    def loss(query: Tensor) -> Tensor:
        return attend(query).square().sum()

    with right_or_refused(backend):
        actual = getattr(torch.func, transform)(loss)(query)
        expected = (torch.autograd.functional.hessian if transform == 'hessian' else
                    torch.autograd.functional.jacobian)(
            lambda query: of_query(random_graph(4, 4, 0.6), 'gather')[0](query).square().sum(),
            query)
        assert_same(actual, expected)


def test_gradients_of_samples_are_right_or_refused(backend):
    attend, query = of_query(GRAPHS['square'](), backend)
    queries = torch.stack([query, -query, 2 * query])

    def loss(query: Tensor) -> Tensor:
        return attend(query).square().sum()

    with right_or_refused(backend):
        actual = torch.func.vmap(torch.func.grad(loss))(queries)
        each = [torch.func.grad(loss)(query) for query in queries]
        assert_same(actual, torch.stack(each))


@pytest.mark.parametrize('hops', [1, 2])
def test_second_derivatives_are_right_or_refused(backend, hops):
    graph = random_graph(4, 4, 0.6)
    inputs = leaves(graph)
    if hops > 1 and backend in DENSE:
        pytest.skip('it has one hop')

    def attend(*tensors):
        return edge_attention(*tensors, graph, hops=hops, teleport=0.2 * (hops - 1),
                              backend=backend)

    with right_or_refused(backend, right=('gather', 'reference')):
        assert torch.autograd.gradgradcheck(attend, list(inputs.values()), fast_mode=True)


@pytest.mark.parametrize('name', ['square', 'full'])
def test_a_refused_second_derivative_names_the_backend_that_has_it(backend, name):
    graph = GRAPHS[name]()
    query, key, value = torch.randn(3, graph.num_queries, 2, 4, requires_grad=True)
    out = edge_attention(query, key, value, graph, backend=backend)
    try:
        grad, = torch.autograd.grad(out.sin().sum(), query, create_graph=True)
        torch.autograd.grad(grad.sum(), query)
    except NotImplementedError as error:
        assert "pass backend='gather', which supports all" in str(error)
    else:
        assert backend in ('gather', 'reference')


def test_the_limit_of_all_hops_has_one_derivative():
    graph = GRAPHS['square']()
    inputs = leaves(graph)
    out = edge_attention(graph=graph, **inputs, hops=torch.inf, teleport=0.4, backend='gather')
    with pytest.raises(NotImplementedError, match="hops=math.inf has no second derivative"):
        torch.autograd.grad(out.sum(), inputs['query'], create_graph=True)
    attend, query = of_query(graph, 'gather')
    with pytest.raises(NotImplementedError, match="hops=math.inf supports"):
        torch.func.jvp(lambda query: edge_attention(
            query, query, query, graph, hops=torch.inf, teleport=0.4), (query,), (query,))


def test_the_limit_of_all_hops_leaves_its_arguments_alone():
    value = torch.empty(0, 2, 3)
    attention_diffusion(torch.empty(0, 2), value, GRAPHS['no_tokens'](), hops=torch.inf,
                        teleport=0.5)
    assert not value.requires_grad


# Another device, without one #########################################################


@pytest.mark.parametrize('name', ['square', 'ragged_batch', 'full'])
@pytest.mark.parametrize('hops', [1, 2])
def test_everything_stays_on_the_device(name, hops):
    """Tensors of a GPU that hold no numbers: operations that mix devices fail all the same."""
    example = GRAPHS[name]()
    with FakeTensorMode(allow_non_fake_inputs=False):
        graph = on_a_gpu(example)
        inputs = {n: torch.empty((graph.num_queries, 2, 4), device='cuda')
                  for n in ('query', 'key', 'value')}
        out = edge_attention(graph=graph, **inputs, hops=hops, teleport=0.1 * (hops - 1),
                             backend='gather')
        bias = torch.empty(graph.num_edges, device='cuda')
        out = out + edge_attention(graph=graph, **inputs, edge_bias=bias, edge_gate=bias,
                                   backend='gather')
        assert out.device.type == 'cuda'
        assert {part.device.type for part in (*graph.csc, graph.key, graph.query,
                                              graph.transpose().key)} == {'cuda'}


def on_a_gpu(graph: BipartiteGraph) -> BipartiteGraph:
    """A graph of these sizes, without numbers; square."""
    indptr, key, ptr = (torch.empty(part.shape, dtype=part.dtype, device='cuda')
                        for part in (*graph.csr, graph.segments.query_ptr))
    return BipartiteGraph.from_csr(indptr, key, graph.num_keys, query_ptr=ptr, key_ptr=ptr,
                                   validate=False)


@pytest.mark.parametrize('name', ['square', 'ragged_batch', 'full'])
@pytest.mark.parametrize('options', [{}, dict(hops=2, teleport=0.1), dict(dropout_p=0.5)], ids=str)
def test_on_meta_attention_has_a_shape(name, options):
    graph = GRAPHS[name]().to('meta')
    inputs = {key: x.detach().to('meta').requires_grad_()
              for key, x in draw(GRAPHS[name](), 'per_edge').items()}
    for terms in (inputs, {key: inputs[key] for key in ('query', 'key', 'value')}):
        out = edge_attention(graph=graph, **terms, **options)
        assert out.shape == inputs['value'].shape and out.is_meta
        for grad, x in zip(with_grads(out, terms)[1:], terms.values()):
            assert grad.shape == x.shape and grad.is_meta
    with pytest.raises(ValueError, match="'hops' must be finite .*got inf"):
        edge_attention(graph=graph, **inputs, hops=math.inf, teleport=0.1)


@pytest.mark.parametrize('backend', ['numba', 'sdpa', 'reference'])
def test_a_backend_of_another_device_is_refused(backend):
    graph = GRAPHS['square']().to('meta')
    x = torch.empty(12, 2, 4, device='meta')
    with pytest.raises(ValueError, match=f"backend '{backend}' does not run on meta"):
        edge_attention(x, x, x, graph, backend=backend)
