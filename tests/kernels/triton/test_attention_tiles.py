"""Attention by tiles, beside rows of edges: who takes which, and that both say the same."""

from __future__ import annotations

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.patterns import GlobalTokens, RandomKeys, SlidingWindow
from tests.graphs import GRAPHS, random_graph
from tests.kernels import test_backends as contract
from tests.kernels.triton.interpreter import interpreted
from tests.kernels.triton.test_triton import attend, inputs

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from graphattn.kernels.triton import attention_tiles as tiles  # noqa: E402

pytestmark = pytest.mark.filterwarnings('ignore::RuntimeWarning')


def by(edges_of_a_tile, monkeypatch, graph, tensors, **options):
    """Output and gradients, tiles having at least so many edges."""
    monkeypatch.setattr(tiles, 'EDGES_OF_A_TILE', edges_of_a_tile)
    with interpreted():
        return attend('triton', graph, *tensors, **options)


def assert_same(monkeypatch, graph, tensors, expected=None, **options):
    """By tiles alone as by rows alone, or as expected."""
    if expected is None:
        expected = by(10**9, monkeypatch, graph, tensors, **options)
    actual = by(1, monkeypatch, graph, tensors, **options)
    for part, other in zip(actual, expected):
        scale = other.nan_to_num(0., 0., 0.).abs().max().clamp(min=1).item() if other.numel() else 1
        torch.testing.assert_close(part.double(), other.double(), rtol=2e-2, atol=1e-2 * scale,
                                   equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('name', ['ragged_rectangles', 'hub', 'more_queries', 'no_edges',
                                  'graph_per_head', 'no_keys'])
def test_equals_rows(name, dtype, monkeypatch):
    graph = GRAPHS[name]()
    assert_same(monkeypatch, graph, inputs(graph, 2, 2, 8, 2, dtype))


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_only_results_are_rounded(dtype, monkeypatch):
    monkeypatch.setattr(tiles, 'EDGES_OF_A_TILE', 1)
    with interpreted():
        contract.test_half_precision_rounds_only_its_results('full', dtype, 'triton')
        contract.test_gradients_of_half_precision_are_made_of_outputs_that_are_not_rounded(
            'triton', dtype)


@pytest.mark.slow
@pytest.mark.parametrize('heads, key_heads, dropout_p', [(2, 2, 0.3), (4, 2, 0.), (4, 1, 0.3)])
def test_dropout_and_shared_keys(heads, key_heads, dropout_p, monkeypatch):
    """Whose numbers are those of a CPU."""
    graph = random_graph(70, 40, 0.3)
    tensors = inputs(graph, heads, key_heads, 4, heads, torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = attend('numba', graph, *exact, dropout_p=dropout_p)
    assert_same(monkeypatch, graph, tensors, expected, dropout_p=dropout_p)


@pytest.mark.slow
@pytest.mark.parametrize('part', range(3), ids=['query', 'key', 'value'])
@pytest.mark.parametrize('poison', [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_whom_an_edge_joins(part, poison, monkeypatch):
    graph = GRAPHS['hub']()
    tensors = inputs(graph, 1, 1, 4, 1, torch.bfloat16)
    tensors[part].data[7, 0, 1] = poison
    assert_same(monkeypatch, graph, tensors)


@pytest.mark.slow
def test_some_rows_by_tiles_and_the_others_one_by_one(monkeypatch):
    """And long ones of these in parts, which those of tiles are not."""
    mask = torch.rand(200, 90) < 0.02
    mask[:60], mask[150] = True, True
    graph = BipartiteGraph.from_mask(mask)
    tensors = inputs(graph, 2, 2, 4, 2, torch.bfloat16)
    expected = by(10**9, monkeypatch, graph, tensors)
    monkeypatch.setattr('graphattn.kernels.triton.rows.EDGES_OF_A_PART', 16)
    actual = by(182, monkeypatch, graph, tensors)
    assert chosen(graph) == [True, False, False, False]
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def chosen(graph, channels=8, dtype=torch.bfloat16):
    with interpreted():
        is_tiled = tiles.choose(*graph.csr, graph.num_keys, channels, dtype)
    return None if is_tiled is None else is_tiled.tolist()


@pytest.mark.slow
@pytest.mark.parametrize('pattern, expected', [
    (SlidingWindow(32), [True] * 4), (RandomKeys(8), [False] * 4), (RandomKeys(128), [True] * 4),
    (SlidingWindow(2), [False] * 4), (SlidingWindow(2) | GlobalTokens(1), [False] * 4),
    (SlidingWindow(0) - SlidingWindow(0), [False] * 4)], ids=str)
def test_edges_that_stand_close_are_taken_by_tiles(pattern, expected, monkeypatch):
    assert chosen(pattern.build(256, seed=0)) == expected


def test_what_tensor_cores_do_not_take_goes_by_rows():
    graph = random_graph(9, 9, 1.)
    assert chosen(graph, dtype=torch.float32) is chosen(graph, channels=65) is None
