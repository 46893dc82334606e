"""Features of edges in Triton's kernels have the numbers of CPUs, beside all other terms."""

from functools import partial

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph, ops
from graphattn.functional import edge_feature_attention
from graphattn.ops import EdgeFeatures, LogitTerms
from tests.graphs import GRAPHS
from tests.ops.test_edge_features import draw, with_grads
from tests.ops.triton import interpreter

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore::RuntimeWarning')]

interpreted = interpreter.interpreted
NAMES = ('query', 'key', 'value', 'at_query', 'attr', 'bias', 'gate', 'sink')


@pytest.fixture(autouse=True, params=[0., torch.inf], ids=['one head', 'all heads'])
def heads_of_a_program(request, monkeypatch):
    monkeypatch.setattr(f'{__name__}.interpreted',
                        partial(interpreter.interpreted, short_rows=request.param))


def inputs(graph: BipartiteGraph, heads: int = 2, num_kv_heads: int = 2,
           dtype: torch.dtype = torch.double) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(graph.num_queries, heads, 4), (graph.num_keys, num_kv_heads, 4),
              (graph.num_keys, num_kv_heads, 3), (graph.num_queries, heads, 5),
              (graph.num_edges, 5), (graph.num_edges, heads), (graph.num_edges, 1), (1, heads)]
    return {name: torch.randn(shape, generator=generator, dtype=torch.double).to(dtype)
            for name, shape in zip(NAMES, shapes)}


def attend(backend: str, graph: BipartiteGraph, tensors: dict[str, Tensor], *,
           needed: tuple[str, ...] = NAMES, of: tuple[str, ...] = ('out', 'sums'),
           dropout_p: float = 0., softcap: float | None = None) -> dict[str, Tensor]:
    """Output, sums, and the gradients of the results ``of`` with respect to those ``needed``."""
    leaves = {name: x.detach().requires_grad_(name in needed) for name, x in tensors.items()}
    query, key, value, at_query, attr, *others = map(leaves.get, NAMES)
    torch.manual_seed(3)
    bias, gate, sink = others
    out, sums = ops.load(backend).attention_with_features(
        query, key, value, graph, LogitTerms(bias, gate, 0.3, dropout_p, softcap, sink,
                                             EdgeFeatures(at_query, attr)))
    results = {'out': out, 'sums': sums}
    loss = sum(results[name].square().sum() for name in of)
    own = [leaves[name] for name in leaves if name in needed]
    grads = torch.autograd.grad(loss, own, allow_unused=True, materialize_grads=True)
    return {**results, **dict(zip((name for name in leaves if name in needed), grads))}


def assert_same_on_both(graph: BipartiteGraph, tensors: dict[str, Tensor], **options) -> None:
    expected = attend('numba', graph, tensors, **options)
    with interpreted():
        found = attend('triton', graph, tensors, **options)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize('options', [
    dict(), dict(dropout_p=0.3), dict(dropout_p=0.3, softcap=0.7),
    dict(needed=[name for name in NAMES if name != 'attr']), dict(of=['out']), dict(of=['sums'])],
    ids=['all terms', 'dropout', 'softcap', 'no gradient of features', 'output', 'sums'])
def test_features_beside_other_terms(options):
    graph = GRAPHS['idle_nodes']()
    assert_same_on_both(graph, inputs(graph), **options)


@pytest.mark.parametrize('name', ['idle_nodes', 'no_edges'])
def test_heads_that_share_keys(name):
    graph = GRAPHS[name]()
    assert_same_on_both(graph, inputs(graph, heads=6), dropout_p=0.3)


def test_long_rows_in_parts(monkeypatch):
    from graphattn.ops.triton import rows

    monkeypatch.setattr(rows, 'EDGES_OF_A_PART', 2)
    graph = GRAPHS['hub']()
    assert_same_on_both(graph, inputs(graph), dropout_p=0.3)


def test_half_precision_rounds_only_its_results():
    graph, dtype = GRAPHS['hub'](), torch.bfloat16
    tensors = {name: x for name, x in inputs(graph, dtype=dtype).items() if name != 'sink'}
    expected = attend('numba', graph, {name: x.double() for name, x in tensors.items()})
    with interpreted():
        found = attend('triton', graph, tensors)
    assert {x.dtype for x in found.values()} == {dtype}
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close({name: x.double() for name, x in found.items()}, expected,
                               rtol=4 * eps, atol=8 * eps)


@pytest.mark.parametrize('poisoned, poison', [('attr', torch.inf), ('at_query', torch.nan)])
def test_poison_reaches_what_it_reaches_on_cpus(poisoned, poison):
    graph = GRAPHS['square']()
    tensors = inputs(graph)
    tensors[poisoned][0] = poison
    expected = attend('numba', graph, tensors)
    with interpreted():
        found = attend('triton', graph, tensors)
    for name in ('out', 'sums', 'query', 'key', 'value', 'at_query', 'attr'):
        assert torch.equal(found[name].isfinite(), expected[name].isfinite()), name
    assert not expected['sums'].isfinite().all() and expected['sums'].isfinite().any()


def test_more_features_than_a_program_holds_are_computed_from_weights():
    graph = GRAPHS['square']()
    tensors = draw(graph, 4, size=257)
    expected = with_grads(edge_feature_attention(graph=graph, **tensors, scale=0.01), tensors)
    with interpreted():
        out = edge_feature_attention(graph=graph, **tensors, scale=0.01, backend='triton')
        torch.testing.assert_close(with_grads(out, tensors), expected)
