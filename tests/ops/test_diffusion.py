"""Attention diffusion: its meaning, one for all kernels, and what the compiled one promises."""

import ctypes
import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import APPNP

from graphattn import BipartiteGraph
from graphattn.functional import (
    attention_diffusion,
    attention_weights,
    edge_attention,
    heat_teleport,
)
from graphattn.ops.cpu import orders, schedule
from graphattn.ops.diffusion import schema as operators
from graphattn.ops.weights import schema as weight_operators
from graphattn.patterns import SlidingWindow
from tests.graphs import GRAPHS, random_graph
from tests.ops.numbers import CHANNELS, HEADS, assert_same, draw, saved_bytes, with_grads
from tests.pairwise import pairwise

HOPS = 3
SQUARE = [name for name in GRAPHS if GRAPHS[name]().is_square]
FEW_VALUES = ['plain', 'shared', 'per_head']
TELEPORTS = {'number': lambda n: 0.3, 'never': lambda n: 0., 'each_hop': lambda n: (0.1, 0., 0.6),
             'head': lambda n: torch.tensor([0.2, 0.7]).double(),
             'all': lambda n: torch.rand(HOPS, n, HEADS, dtype=torch.double,
                                         generator=torch.Generator().manual_seed(2))}


def diffuse(graph: BipartiteGraph, inputs: dict[str, Tensor], backend: str = 'numba', *,
            hops: float = HOPS, teleport=0.3, dropout_p: float = 0.) -> Tensor:
    inputs = {**inputs}
    value, teleport = inputs.pop('value'), inputs.pop('teleport', teleport)
    alpha = attention_weights(graph=graph, **inputs, dropout_p=dropout_p, backend=backend)
    return attention_diffusion(alpha, value, graph, hops=hops, teleport=teleport, backend=backend)


def diffuse_in_one(graph: BipartiteGraph, inputs: dict[str, Tensor], backend: str = 'numba', *,
                   hops: float = HOPS, teleport=0.3, dropout_p: float = 0.) -> Tensor:
    return edge_attention(graph=graph, **{'teleport': teleport, **inputs}, hops=hops,
                          dropout_p=dropout_p, backend=backend)


def dense_weights(graph: BipartiteGraph, alpha: Tensor) -> Tensor:
    """``[heads, queries, keys]``."""
    dense = alpha.new_zeros(graph.num_queries, graph.num_keys, alpha.size(1))
    return dense.index_put((graph.query, graph.key), alpha).permute(2, 0, 1)


def cycle(n: int) -> BipartiteGraph:
    """Every token attends to the next one alone."""
    query = torch.arange(n)
    return BipartiteGraph.from_edge_index(torch.stack([(query + 1) % n, query]), n)


# What it means #######################################################################


@pytest.mark.parametrize('teleport, expected', [
    (0.1, [.1, .09, .081, .0729, .06561, .59049]),
    (0., [0, 0, 0, 0, 0, 1]),
    ((.5, .5, 0., .5, 1.), [.5, .25, 0, .125, .125, 0]),
])
def test_weights_of_the_hops(backend, teleport, expected):
    graph, alpha = cycle(8), torch.ones(8, 1, dtype=torch.double)
    out = attention_diffusion(alpha, torch.eye(8).double().unsqueeze(1), graph, hops=5,
                              teleport=teleport, backend=backend)
    torch.testing.assert_close(out[0, 0], torch.tensor([*expected, 0, 0]).double())
    torch.testing.assert_close(out[2, 0].roll(-2), out[0, 0])


@pytest.mark.parametrize('hops, time', [(5, 2.), (3, 0.01), (6, 40.), (0, 1.), (200, 3.)])
def test_weights_of_the_heat_kernel(hops, time):
    n = hops + 2
    out = attention_diffusion(torch.ones(n, 1).double(), torch.eye(n).double().unsqueeze(1),
                              cycle(n), hops=hops, teleport=heat_teleport(hops, time))
    poisson = torch.distributions.Poisson(torch.tensor(time, dtype=torch.double))
    weight = poisson.log_prob(torch.arange(hops + 1).double()).exp()
    torch.testing.assert_close(out[0, 0, :-1], weight / weight.sum(), atol=1e-14, rtol=1e-9)


@pytest.mark.parametrize('name', ['square', 'ragged_batch', 'idle_tokens', 'hub'])
@pytest.mark.parametrize('hops', [1, 5])
def test_is_appnp_on_the_graph_of_all_heads(name, hops, backend):
    graph = GRAPHS[name]()
    inputs = draw(graph)
    alpha = attention_weights(inputs['query'], inputs['key'], graph, backend='reference')
    alpha, value = (x.detach().requires_grad_() for x in (alpha, inputs['value']))
    first_node = graph.num_queries * torch.arange(HEADS)
    edge_index = (graph.edge_index.as_tensor()[:, None] + first_node[:, None]).flatten(1)
    appnp = APPNP(hops, 0.1, normalize=False, add_self_loops=False)
    expected = appnp(value.transpose(0, 1).flatten(0, 1), edge_index, alpha.t().flatten())
    expected = expected.unflatten(0, (HEADS, -1)).transpose(0, 1)
    out = attention_diffusion(alpha, value, graph, hops=hops, teleport=0.1, backend=backend)
    leaves = {'alpha': alpha, 'value': value}
    assert_same(with_grads(out, leaves), with_grads(expected, leaves), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize('edge_values, teleport', [
    *(('plain', teleport) for teleport in TELEPORTS), ('shared', 'number'), ('per_head', 'all')])
@pytest.mark.parametrize('name', SQUARE)
def test_equals_reference(name, edge_values, teleport, fast_backend, with_threads):
    graph = GRAPHS[name]()
    teleport = TELEPORTS[teleport](graph.num_queries)
    inputs = draw(graph, edge_values)
    if isinstance(teleport, Tensor):
        inputs['teleport'] = teleport.requires_grad_()
    run = partial(diffuse, graph, inputs, teleport=teleport)
    actual = with_threads(2, lambda: with_grads(run(backend=fast_backend), inputs))
    assert_same(actual, with_grads(run(backend='reference'), inputs))


# To the limit ########################################################################


def resolvent(attention: Tensor, start: Tensor, teleport: Tensor | float) -> Tensor:
    identity = torch.eye(attention.size(-1), dtype=attention.dtype)
    return torch.linalg.solve(identity - (1 - teleport) * attention, teleport * start)


def window(n: int) -> BipartiteGraph:
    return SlidingWindow(2).build(n)


def limit_and_resolvent(graph: BipartiteGraph, alpha: Tensor, teleport: float, dtype: torch.dtype,
                        **options) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs and gradients, those of a dense solve in float64."""
    heads = alpha.size(1)
    inputs = {'alpha': alpha.to(dtype), 'value': draw(graph, dtype=dtype, heads=heads)['value'],
              'teleport': torch.full((heads,), teleport, dtype=dtype)}
    inputs = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    right = resolvent(dense_weights(graph, exact['alpha']), exact['value'].transpose(0, 1),
                      exact['teleport'][:, None, None]).transpose(0, 1)
    out = attention_diffusion(**inputs, graph=graph, hops=math.inf, **options)
    return with_grads(out, inputs), with_grads(right, exact)


def assert_converged(results: dict[str, Tensor], expected: dict[str, Tensor], share: float) -> None:
    """Assert that results are as close as the docs of :func:`attention_diffusion` promise."""
    rounding = 10 * torch.finfo(results['out'].dtype).eps / share
    for name, right in expected.items():
        scale = float(right.abs().max())
        if name == 'teleport':  # a sum of what each message is worth, times what it is
            scale = float(expected['value'].abs().sum() * expected['out'].abs().max()) / share
        torch.testing.assert_close(results[name].double(), right, rtol=0, atol=rounding * scale)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('make, n, teleport', [
    (window, 64, 0.01), (window, 64, 0.4), (cycle, 2, 0.05), (cycle, 2, 1.), (cycle, 2, 1e-5),
    (cycle, 30, 1e-3)])
def test_the_limit_is_the_resolvent_at_any_teleport(make, n, teleport, dtype):
    graph = make(n)
    inputs = draw(graph, heads=1)
    alpha = attention_weights(inputs['query'], inputs['key'], graph, backend='reference').detach()
    limits = limit_and_resolvent(graph, alpha, teleport, dtype, backend='gather')
    assert_converged(*limits, teleport)


@pytest.mark.slow
def test_the_limit_exists_for_some_weights_above_one():
    """Dropout makes such weights: some rows grow and others lose more."""
    graph, alpha = cycle(6), torch.tensor([1.9, 0.2] * 3).double().unsqueeze(1)
    for scale in (1., -1.):
        results, expected = limit_and_resolvent(graph, scale * alpha, 0.1, torch.double)
        assert_converged(results, expected, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize('teleport', [1e-3, 0.3])
def test_nan_leaves_the_limit_of_others_alone(teleport):
    graph = BipartiteGraph.batch([cycle(3), cycle(4)])
    inputs = {'alpha': torch.ones(7, 1), 'value': draw(graph, dtype=torch.float, heads=1)['value']}
    expected, _ = limit_and_resolvent(graph, torch.ones(7, 1), teleport, torch.float)
    for poisoned in ('alpha', 'value'):
        arguments = {name: tensor.detach().clone() for name, tensor in inputs.items()}
        arguments[poisoned][1] = torch.nan
        out = attention_diffusion(**arguments, graph=graph, hops=math.inf, teleport=teleport)
        assert out[:3].isnan().all()
        assert_same(out[3:], expected['out'][3:], 1e-6 / teleport)


@pytest.mark.slow
def test_weights_above_one_without_a_limit_are_refused():
    graph, value = cycle(4), torch.ones(4, 1, 1)
    for weight in (2., 1.25):
        with pytest.raises(RuntimeError, match="hops=math.inf did not converge"):
            attention_diffusion(torch.full((4, 1), weight), value, graph, hops=math.inf,
                                teleport=0.2)


# Gradients and precision #############################################################


def test_the_gradient_of_a_teleport_of_0_and_of_1(backend):
    graph = GRAPHS['idle_tokens']()
    teleport = torch.tensor([[[0., 0.4]], [[1., 0.]], [[0.3, 1.]]]).double().requires_grad_()
    inputs = draw(graph) | {'teleport': teleport}
    alpha = attention_weights(inputs['query'], inputs['key'], graph, backend='reference')
    attention, start = dense_weights(graph, alpha), inputs['value'].transpose(0, 1)
    z = start
    for of_hop in reversed(teleport.transpose(1, 2).unsqueeze(-1).unbind()):
        z = (1 - of_hop) * (attention @ z) + of_hop * start
    expected = with_grads(z.transpose(0, 1), inputs)
    assert (expected['teleport'] != 0).sum() == 5  # one comes before a hop that forgets it
    assert_same(with_grads(diffuse(graph, inputs, backend), inputs), expected)
    assert_same(with_grads(diffuse_in_one(graph, inputs, backend), inputs), expected)


@pytest.mark.parametrize('backend', ['gather', 'reference'])
def test_forward_mode_and_second_derivative_of_a_teleport_of_0(backend):
    graph = GRAPHS['square']()
    inputs = {name: tensor.detach() for name, tensor in draw(graph).items()}
    alpha = attention_weights(inputs['query'], inputs['key'], graph)

    def of(teleport: Tensor) -> Tensor:
        return attention_diffusion(alpha, inputs['value'], graph, hops=2, teleport=teleport,
                                   backend=backend)

    zero, one = torch.zeros(()).double(), torch.ones(()).double()
    attention, start = dense_weights(graph, alpha), inputs['value'].transpose(0, 1)
    first = attention @ start + start - 2 * attention @ attention @ start  # of (1-t)^2 A^2 + ...
    second = 2 * (attention @ attention @ start - attention @ start)
    assert_same(torch.func.jvp(of, (zero,), (one,))[1], first.transpose(0, 1))
    leaf = zero.clone().requires_grad_()
    grad, = torch.autograd.grad(of(leaf).sum(), leaf, create_graph=True)
    assert_same(torch.autograd.grad(grad, leaf)[0], second.sum(), 1e-9)


@pytest.mark.parametrize('name', ['query', 'key', 'value', 'edge_bias', 'edge_gate', 'teleport'])
def test_gradient_of_one_input_alone(name, backend):
    graph = GRAPHS['square']()
    inputs = draw(graph, 'shared') | {'teleport': torch.full((HEADS,), 0.4).double()
                                      .requires_grad_()}
    expected = with_grads(diffuse(graph, inputs, backend), inputs)[name]
    constants = {other: tensor.detach() for other, tensor in inputs.items()}
    leaf = {name: inputs[name]}
    assert_same(with_grads(diffuse(graph, {**constants, **leaf}, backend), leaf)[name], expected)


def test_autocast_changes_nothing(backend):
    graph = GRAPHS['square']()
    inputs = draw(graph, 'shared', dtype=torch.float32)
    expected = with_grads(diffuse(graph, inputs, backend), inputs)
    with torch.autocast('cpu', torch.bfloat16):
        out = diffuse(graph, inputs, backend)
    assert_same(with_grads(out, inputs), expected, 1e-5)


@pytest.mark.parametrize('poison', [torch.nan, torch.inf])
@pytest.mark.parametrize('teleport', [0., 0.3])
def test_nan_travels_no_further_than_the_hops(backend, teleport, poison):
    graph = cycle(8)
    inputs = draw(graph)
    with torch.no_grad():
        inputs['value'][5] = poison
    out = diffuse(graph, inputs, backend, hops=2, teleport=teleport)
    reached = (~out.isfinite()).all(dim=(1, 2))
    assert reached.nonzero().flatten().tolist() == ([3] if teleport == 0 else [3, 4, 5])
    assert out[~reached].isfinite().all()


# Dropout, threads, memory ############################################################


@pytest.mark.parametrize('run', [diffuse, diffuse_in_one])
@pytest.mark.parametrize('name', ['hub', 'ragged_batch', 'graph_per_head'])
def test_bit_for_bit_the_same_in_any_number_of_threads(name, run, with_threads):
    graph = GRAPHS[name]()
    inputs = draw(graph, 'shared', dtype=torch.float32)
    inputs['teleport'] = torch.full((HEADS,), 0.4).requires_grad_()

    def train():
        return with_grads(run(graph, inputs), inputs)

    expected = with_threads(1, train)
    for num_threads in (1, 2, 2, 3, 4, 7):
        assert_same(with_threads(num_threads, train), expected, 0)


@pytest.mark.parametrize('name', ['hub', 'ragged_batch', 'graph_per_head'])
def test_hops_wait_for_previous_hops_but_not_for_threads(name, with_threads, monkeypatch):
    """Were there fewer threads than asked for, all work would be the first one's."""
    graph = GRAPHS[name]()
    inputs = draw(graph, dtype=torch.float32)

    def train():
        return with_grads(diffuse_in_one(graph, inputs, hops=6, teleport=0.1), inputs)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    def one_after_the_other(region, data, num_threads, flags):
        called.append(num_threads)
        for _ in range(num_threads):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(region)(data)

    called, expected = [], with_threads(3, train)
    address = ctypes.cast(one_after_the_other, ctypes.c_void_p).value
    monkeypatch.setattr(schedule, 'start_of_threads', lambda: address)
    assert_same(with_threads(3, train), expected, 0)
    assert max(called) == 3


@pytest.mark.slow
@pytest.mark.parametrize('hops', [1, 2])
def test_more_tokens_than_16_bits_can_number(hops):
    num_tokens, query = 2**16 + 3, torch.arange(2**16 + 3)
    edge_index = torch.stack([torch.cat([query.roll(1), query.roll(-2)]), query.repeat(2)])
    graph = BipartiteGraph.from_edge_index(edge_index, num_tokens)
    inputs = draw(graph, dtype=torch.float32, channels=2, value_channels=2, heads=1)
    actual, expected = (with_grads(diffuse_in_one(graph, inputs, name, hops=hops, teleport=0.),
                                   inputs) for name in ('numba', 'gather'))
    assert_same(actual, expected, 1e-5)


@pytest.mark.parametrize('run', [diffuse, diffuse_in_one])
@pytest.mark.parametrize('hops', [1, 5])
def test_bytes_saved_for_backward(hops, run):
    graph = random_graph(60, 60, 0.2)
    inputs = draw(graph, dtype=torch.float32, value_channels=CHANNELS)
    per_edge = 4 * HEADS * graph.num_edges if run is diffuse else 0
    statistics = 0 if run is diffuse else 8 * HEADS * 60
    needed = per_edge + statistics + (3 + hops) * inputs['value'].numel() * 4
    edges = 4 * graph.num_edges + 8 * graph.num_edges + 2 * 8 * 61  # in both orders
    saved = saved_bytes(partial(run, graph, inputs, hops=hops, teleport=0.1))
    assert needed <= saved <= needed + edges + 64


@pytest.mark.slow
@pytest.mark.parametrize('name, edge_values, teleport, edges_at_once', pairwise(
    SQUARE, FEW_VALUES, TELEPORTS, [1, 2**20]))
def test_one_operator_equals_two(name, edge_values, teleport, edges_at_once, monkeypatch):
    graph = GRAPHS[name]()
    inputs = draw(graph, edge_values)
    teleport = TELEPORTS[teleport](graph.num_queries)
    if isinstance(teleport, Tensor):
        inputs['teleport'], teleport = teleport.requires_grad_(), None
    expected = with_grads(diffuse(graph, inputs, teleport=teleport), inputs)
    monkeypatch.setattr(orders, 'EDGES_AT_ONCE', edges_at_once)  # heads apart, or together
    assert_same(with_grads(diffuse_in_one(graph, inputs, teleport=teleport), inputs), expected,
                tolerance=1e-13)
    assert_same(with_grads(diffuse(graph, inputs, teleport=teleport), inputs), expected,
                tolerance=1e-13)


@pytest.mark.parametrize('needed', [('query',), ('key',), ('value',), ('edge_bias',),
                                    ('edge_gate',), ('teleport',), ('value', 'edge_gate')])
def test_one_operator_returns_the_requested_gradients(needed):
    graph = GRAPHS['square']()
    inputs = {**draw(graph, 'per_head'), 'teleport': torch.rand(HOPS, 1, HEADS).double()}
    inputs = {name: tensor.detach().requires_grad_(name in needed)
              for name, tensor in inputs.items()}
    expected, actual = (run(graph, inputs) for run in (diffuse, diffuse_in_one))
    leaves = [inputs[name] for name in needed]
    assert_same(torch.autograd.grad(actual.sum(), leaves),
                torch.autograd.grad(expected.sum(), leaves))


@pytest.mark.parametrize('changes', [
    {'hops': 0}, {'hops': math.inf}, {'teleport': 1.}, {'backend': 'gather'}])
def test_two_operators_support_what_one_does_not(changes):
    graph = GRAPHS['square']()
    inputs = draw(graph)
    expected, actual = (with_grads(run(graph, inputs, **changes), inputs)
                        for run in (diffuse, diffuse_in_one))
    assert_same(actual, expected)


def test_inference_keeps_nothing_and_transposes_nothing():
    graph = random_graph(30, 30, 0.2)
    inputs = {name: tensor.detach() for name, tensor in draw(graph).items()}
    diffuse(graph, inputs)
    assert graph._csc is None


@pytest.mark.parametrize('changed', ['query', 'value'])
def test_a_change_between_the_passes_is_an_error(changed):
    graph = GRAPHS['square']()
    leaves = draw(graph)
    inputs = {name: leaf * 1 for name, leaf in leaves.items()}
    out = diffuse(graph, inputs)
    with torch.no_grad():
        inputs[changed].add_(0)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        out.sum().backward()


@pytest.mark.parametrize('learn_teleport', [False, True])
def test_incoming_gradients_are_not_modified(learn_teleport):
    graph = GRAPHS['square']()
    inputs = draw(graph, heads=1)  # a head alone lies apart as it is, and is not copied
    inputs['teleport'] = torch.tensor(0.3).double().requires_grad_(learn_teleport)
    out = diffuse(graph, inputs)
    cotangent = torch.ones_like(out)
    out.backward(cotangent)
    assert bool((cotangent == 1).all())


@pytest.mark.slow
@pytest.mark.parametrize('edge_values', ['plain', 'per_head'])
def test_operators_keep_torchs_rules(edge_values):
    graph = GRAPHS['square']()
    inputs = {'edge_bias': None, 'edge_gate': None, **draw(graph, edge_values)}
    terms = [None if inputs[name] is None else inputs[name].reshape(graph.num_edges, -1)
             .detach().requires_grad_() for name in ('edge_bias', 'edge_gate')]
    terms.append(torch.randn(1, HEADS, dtype=torch.double, requires_grad=True)
                 if edge_values != 'plain' else None)
    edges = (*graph.csr, *graph.csc)
    torch.library.opcheck(weight_operators.attention_weights,
                          (inputs['query'], inputs['key'], *terms, *edges, 0.3, 2.))
    weight = torch.rand(HEADS, graph.num_edges, dtype=torch.double, requires_grad=True)
    teleport = torch.rand(2, 12, HEADS, dtype=torch.double, requires_grad=True)
    torch.library.opcheck(operators.attention_diffusion,
                          (weight, inputs['value'], teleport, *edges, True))
    torch.library.opcheck(operators.attention_diffusion, (
        weight.detach(), inputs['value'].detach(), teleport.detach(), *edges, False))
    torch.library.opcheck(operators.diffused_attention, (
        inputs['query'], inputs['key'], inputs['value'], *terms, teleport, *edges,
        torch.tensor([5]), 0.3, 2., 0.2, True))


# What is refused #####################################################################


def call(**changes) -> Tensor:
    """A valid call, but for ``changes``."""
    graph = GRAPHS['square']()
    arguments = {'alpha': torch.rand(graph.num_edges, HEADS), 'value': torch.randn(12, HEADS, 3),
                 'graph': graph, 'hops': 2, 'teleport': 0.1}
    return attention_diffusion(**{**arguments, **changes})


@pytest.mark.parametrize('changes, match', [
    (dict(teleport=(0.1, 2.)), r"'teleport' must be in \[0, 1\]"),
    (dict(teleport=(0.1,) * 3), r"number.*2.*\(got"),
    (dict(teleport=torch.tensor([0.1, 1.5])), r"in \[0, 1\] \(got 0.1.* to 1.5\)"),
    (dict(teleport=torch.rand(3)), r"\[2, 12, 2\].*got shape \(3,\)"),
    (dict(teleport=torch.ones(2, device='meta')), "'teleport' must be"),
    (dict(teleport=0., hops=math.inf), "'teleport' must be positive .*got 0"),
    (dict(teleport=(0.1,), hops=math.inf), "number.*inf.*got 1 numbers"),
    (dict(alpha=torch.rand(3, HEADS)), "'alpha' must have shape"),
    (dict(value=torch.rand(11, HEADS, 3)), "'value' must.*12"),
    (dict(graph=GRAPHS['more_keys']()), "equal numbers of keys and queries"),
    (dict(backend='sdpa'), "backend 'sdpa' .* weights"),
    (dict(backend='numbra'), "did you mean 'numba'"),
])
def test_refuses(changes, match):
    with pytest.raises(ValueError, match=match):
        call(**changes)
