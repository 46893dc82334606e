"""The contract of every backend, which Triton's interpreter is too slow to go through case by case;
and what the kernels of Triton promise beside it."""

from functools import partial

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph, ops
from graphattn.functional import edge_attention
from graphattn.ops import LogitTerms
from graphattn.testing.call import Kernel
from graphattn.testing.checks import CHECKS, Setting
from tests.graphs import GRAPHS, random_graph
from tests.ops import test_backends as attention
from tests.ops import test_contract as promises
from tests.ops import test_diffusion as diffusion
from tests.ops import test_edge_features as features
from tests.ops.triton.interpreter import interpreted
from tests.testing.test_backends import declared

triton = pytest.importorskip('triton', reason="backend 'triton' needs triton")

import triton.language as tl  # noqa: E402

from graphattn.ops.triton.softmax import place  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # Of numpy, in which the interpreter divides and subtracts what is masked afterwards.
    pytest.mark.filterwarnings('ignore::RuntimeWarning')]

BOTH = 'per_edge_and_head'
EQUAL = attention.test_equals_reference
FEATURES = features.test_features_are_added_to_keys_and_values


@pytest.mark.parametrize('test, arguments', [
    *[(EQUAL, dict(name=name, edge_values=BOTH)) for name in (
        'ragged_rectangles', 'no_edges', 'no_keys', 'no_queries', 'no_segments',
        'shuffled_duplicates')],
    *[(EQUAL, dict(name=name, edge_values='per_edge')) for name in ('more_queries', 'one_token')],
    *[(EQUAL, dict(name=name, edge_values='plain')) for name in ('full', 'graph_per_head')],
    (attention.test_equals_reference_without_channels, dict(channels=0, value_channels=3)),
    (attention.test_equals_reference_without_channels, dict(channels=4, value_channels=0)),
    *[(attention.test_softcaps_and_sinks_equal_reference, dict(name=name, terms=terms))
      for name, terms in (('ragged_rectangles', 'no sink and both terms'), ('hub', 'high softcap'),
                          ('idle_nodes', 'sinks above and below all logits'))],
    (attention.test_softcaps_and_sinks_over_hops_equal_reference,
     dict(hops=3, terms='no sink and both terms')),
    (attention.test_dropout_beside_sinks_is_that_of_reference, dict(hops=1)),
    (attention.test_dropout_beside_sinks_is_that_of_reference, dict(hops=2)),
    (attention.test_no_dropout_draws_nothing, {}),
    (promises.test_second_derivatives_are_right_or_refused, dict(hops=1)),
    (promises.test_forward_mode_is_right_or_refused, dict(name='square')),
    *[(diffusion.test_equals_reference, dict(name=name, edge_values=values, teleport=teleport))
      for name, values, teleport in (('hub', 'per_head', 'each_hop'),
                                     ('ragged_batch', 'shared', 'head'))],
    (diffusion.test_nan_travels_no_further_than_the_hops, dict(teleport=0., poison=torch.inf)),
    (diffusion.test_the_gradient_of_a_teleport_of_0_and_of_1, {}),
    *[(FEATURES, dict(name=name, num_kv_heads=number))
      for name, number in (('ragged_rectangles', 2), ('no_segments', 4), ('graph_per_head', 2))],
    *[(features.test_features_of_any_size, dict(size=size)) for size in (0, 40)],
])
def test_keeps_the_contract(test, arguments):
    needed = test.__code__.co_varnames[:test.__code__.co_argcount]
    given = {'backend': 'triton', 'fast_backend': 'triton', 'way': 'triton', 'restored_rng': None,
             'monkeypatch': None, 'with_threads': lambda _, function: function()}
    with interpreted(), torch.random.fork_rng(devices=[]):
        test(**{name: given[name] for name in needed if name in given}, **arguments)


# Cases of check_attention, of which the interpreter would take minutes for all.
CASES = [('half precision', 'hub, bfloat16'), ('half precision', 'gradients that cancel, bfloat16'),
         ('nothing to attend to', 'idle nodes'),
         ('nothing to attend to', 'bias of -inf for all keys of a query'),
         ('NaN without an edge', 'nan in keys and values with no edges at all'),
         ('NaN without an edge', 'inf in keys and values with one edge'),
         ('graphs', 'ragged batch'), ('large exact logits', 'multiples of 131072'),
         ('softcap', 'of logits about 10'), ('sink', 'with bias'),
         ('strides', 'transposed, square')]


def examine(check: str, name: str) -> None:
    kernel = Kernel(partial(edge_attention, backend='triton'), declared('triton'), 'graph', 'nhc',
                    torch.device('cpu'))
    test, = (each for each in CHECKS if each.name == check)
    case, = (each for each in test.cases(Setting(kernel.supports, None)) if each.name == name)
    assert test.test(kernel, case) <= 1.


@pytest.mark.parametrize('check, name', CASES)
def test_a_case_of_the_checks_is_right(check, name):
    with interpreted():
        examine(check, name)


def inputs(graph, heads: int, num_kv_heads: int, channels: int, edge_heads: int,
           dtype: torch.dtype = torch.double) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(graph.num_queries, heads, channels), (graph.num_keys, num_kv_heads, channels),
              (graph.num_keys, num_kv_heads, channels + 1), (graph.num_edges, edge_heads),
              (graph.num_edges, edge_heads)]
    return [torch.randn(shape, generator=generator, dtype=torch.double).to(dtype).requires_grad_()
            for shape in shapes]


def attend(backend: str, graph, query, key, value, bias, gate, dropout_p=0.,
           softcap=None) -> list[Tensor]:
    """Output and gradients, by one seed."""
    leaves = query, key, value, bias, gate
    torch.manual_seed(3)
    out = ops.load(backend).attention(query, key, value, graph,
                                          LogitTerms(bias, gate, 0.3, dropout_p, softcap))
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


def diffuse(backend: str, graph, query, key, value, bias, gate, dropout_p=0.) -> list[Tensor]:
    leaves = query, key, value, bias, gate
    torch.manual_seed(3)
    bias, gate = (x.squeeze(1) if x.size(1) == 1 else x for x in (bias, gate))
    out = edge_attention(*leaves[:3], graph, edge_bias=bias, edge_gate=gate, hops=2, teleport=0.2,
                         dropout_p=dropout_p, backend=backend)
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


def assert_same(actual, expected, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('run', [attend, diffuse])
@pytest.mark.parametrize('edge_heads', [1, 2])
def test_drops_the_edges_that_cpus_drop(run, edge_heads):
    graph = GRAPHS['ragged_batch']()
    tensors = inputs(graph, 2, 2, 4, edge_heads)
    expected = run('numba', graph, *tensors, dropout_p=0.3)
    with interpreted():
        assert_same(run('triton', graph, *tensors, dropout_p=0.3), expected)


@pytest.mark.parametrize('dropout_p', [0., 0.3])
def test_heads_that_share_keys(dropout_p):
    graph = GRAPHS['idle_nodes']()
    tensors = inputs(graph, 6, 2, 4, 6)
    expected = attend('numba', graph, *tensors, dropout_p=dropout_p)
    with interpreted():
        assert_same(attend('triton', graph, *tensors, dropout_p=dropout_p), expected)


@pytest.mark.parametrize('run', [attend, diffuse])
def test_long_rows_in_parts(run, monkeypatch):
    """Row and column of a hub that attends to all and is attended by all are cut, and a row fills
    its parts."""
    from graphattn.ops.triton import rows

    monkeypatch.setattr(rows, 'EDGES_OF_A_PART', 4)
    mask = GRAPHS['hub']().to_mask()
    mask[3, :8] = mask[5, :4] = True
    graph = BipartiteGraph.from_mask(mask)
    tensors = inputs(graph, 2, 2, 3, 2)
    expected = run('numba', graph, *tensors)
    with interpreted():
        assert_same(run('triton', graph, *tensors), expected)


@pytest.mark.parametrize('run', [attend, diffuse])
def test_graphs_with_long_rows_only(run, monkeypatch):
    from graphattn.ops.triton import rows

    monkeypatch.setattr(rows, 'EDGES_OF_A_PART', 2)
    graph = BipartiteGraph.from_mask(torch.ones(7, 7, dtype=torch.bool))
    tensors = inputs(graph, 2, 2, 3, 2)
    expected = run('numba', graph, *tensors)
    with interpreted():
        assert_same(run('triton', graph, *tensors), expected)
    several = rows.Rows.of(*graph.csr, graph.num_keys).tasks
    assert several.most == 7 * 3 and several.parts(1, 1, torch.float).size(1) >= 7 * 4


@pytest.mark.parametrize('channels', [1, 16, 33, 80, 255])
def test_head_widths(channels):
    graph = random_graph(4, 6, 0.6)
    tensors = inputs(graph, 1, 1, channels, 1, torch.float32)
    tensors[0].data /= channels**0.5
    expected = attend('numba', graph, *[x.detach().double().requires_grad_() for x in tensors])
    with interpreted():
        actual = attend('triton', graph, *tensors)
    torch.testing.assert_close([x.double() for x in actual], expected, rtol=1e-5, atol=2e-5)


@triton.jit
def put_places(out, edge_stride, head_stride):
    from_head = tl.program_id(0)
    edge = tl.arange(0, 2).to(tl.int64)
    at = out + 2 * from_head + tl.arange(0, 2)
    tl.store(at, place(edge_stride, head_stride, edge, from_head))


def test_heads_of_a_bias_may_begin_beyond_2_to_the_31():
    """A bias may be ``[heads, num_edges]`` transposed, whose strides fit into 32 bits each."""
    out = torch.empty(16, 2, dtype=torch.long)
    with interpreted():
        put_places[16,](out, 1, 2**28)
    assert torch.equal(out, torch.arange(16)[:, None] * 2**28 + torch.arange(2))


# Plans ###############################################################################


def plan_of(graph):
    from graphattn.ops.triton.rows import Rows
    return Rows.of(*graph.csr, 2**20).tasks


def test_plans_are_made_once_per_graph_and_die_with_it():
    from graphattn.ops.triton import plans

    graph, before = random_graph(40, 40, 0.9), len(plans._OF_GRAPHS)
    assert plan_of(graph) is plan_of(graph) is not plan_of(random_graph(40, 40, 0.9))
    del graph
    assert len(plans._OF_GRAPHS) == before


def test_tensors_that_are_changed_in_place_have_another_plan():
    from graphattn.ops.triton.rows import Rows

    indptr, column = (part.clone() for part in random_graph(40, 40, 0.9).csr)
    first = Rows.of(indptr, column, 2**20).tasks
    column[0] = 0
    assert Rows.of(indptr, column, 2**20).tasks is not first


def test_rows_of_few_columns_are_not_cut():
    from graphattn.ops.triton.rows import Rows

    graph = random_graph(40, 40, 0.9)
    assert Rows.of(*graph.csr, 40).tasks.max_more == 0 < plan_of(graph).max_more


def test_plans_are_right_before_their_numbers_have_arrived(monkeypatch):
    """The host then knows bounds."""
    from graphattn.ops.triton import plans, rows

    monkeypatch.setattr(rows, 'EDGES_OF_A_PART', 4)
    monkeypatch.setattr(plans.Arriving, 'now', lambda self: None)
    graph = GRAPHS['hub']()
    for dtype in (torch.float64, torch.bfloat16):
        tensors = inputs(graph, 2, 2, 3, 2, dtype)
        exact = [x.detach().double().requires_grad_() for x in tensors]
        with interpreted():
            actual = attend('triton', graph, *tensors)
        tolerance = 1e-10 if dtype == torch.float64 else 2e-2
        torch.testing.assert_close([x.double() for x in actual], attend('numba', graph, *exact),
                                   rtol=tolerance, atol=tolerance)


# Short rows ##########################################################################


def by_short_rows(graph, tensors, run=attend, **options):
    with interpreted(short_rows=torch.inf):
        return run('triton', graph, *tensors, **options)


@pytest.mark.parametrize('name', ['ragged_rectangles', 'hub', 'no_edges', 'no_keys', 'no_queries',
                                  'shuffled_duplicates', 'graph_per_head', 'idle_nodes'])
def test_short_rows_equal_those_of_a_cpu(name):
    graph = GRAPHS[name]()
    tensors = inputs(graph, 3, 3, 5, 3)
    assert_same(by_short_rows(graph, tensors), attend('numba', graph, *tensors))


@pytest.mark.parametrize('heads, num_kv_heads, channels, options', [
    (6, 2, 4, {}), (6, 2, 4, dict(dropout_p=0.3)), (2, 2, 4, dict(softcap=1.)),
    (4, 4, 600 // 4, dict(dropout_p=0.3)), (2, 1, 17, {})])
def test_terms_and_shared_keys_of_short_rows(heads, num_kv_heads, channels, options):
    """And more channels of all heads than a program reads at once."""
    graph = random_graph(5, 6, 0.5)
    tensors = inputs(graph, heads, num_kv_heads, channels, heads)
    assert_same(by_short_rows(graph, tensors, **options),
                attend('numba', graph, *tensors, **options), 1e-10)


def test_short_rows_among_which_are_long_ones(monkeypatch):
    from graphattn.ops.triton import rows

    monkeypatch.setattr(rows, 'EDGES_OF_A_PART', 4)
    graph = GRAPHS['hub']()
    tensors = inputs(graph, 3, 3, 5, 3)
    assert_same(by_short_rows(graph, tensors), attend('numba', graph, *tensors))


@pytest.mark.parametrize('part, poison', [(0, torch.inf), (1, torch.nan), (2, torch.nan)])
def test_non_finite_values_pass_along_edges_of_short_rows(part, poison):
    graph = GRAPHS['idle_nodes']()
    tensors = inputs(graph, 2, 2, 4, 2)
    tensors[part].data[3, 0, 1] = poison
    torch.testing.assert_close(by_short_rows(graph, tensors), attend('numba', graph, *tensors),
                               equal_nan=True)


def test_short_rows_round_only_their_results():
    with interpreted(short_rows=torch.inf):
        examine('half precision', 'hub, bfloat16')
        examine('half precision', 'gradients that cancel, bfloat16')


def test_plans_that_are_captured_are_not_stored(monkeypatch):
    """Their kernels have not run."""
    from graphattn.ops.triton import plans

    graph = random_graph(40, 40, 0.9)
    stored = plan_of(graph)
    monkeypatch.setattr(plans, '_is_capturing', lambda device: True)
    made = [plans.once_per_graph('another', *graph.csr, object) for _ in range(2)]
    assert made[0] is not made[1] and plan_of(graph) is stored
