"""Rows whose keys are ranges, alone and between other rows, in tiles."""

import math

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.ops.attention import cpu
from graphattn.ops.attention.cpu_tiles import MOST, MOST_BACKWARD
from graphattn.ops.cpu import schedule
from graphattn.ops.cpu.tiles import in_tiles
from graphattn.patterns import Causal, Full, RandomKeys, ShiftedWindows, SlidingWindow
from tests.ops.cpu.test_attention import edges_by_query


@pytest.fixture(autouse=True)
def always_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in 'MOST', 'MOST_BACKWARD':
        monkeypatch.setattr(cpu, most, math.inf)


def of_mask(mask: Tensor) -> BipartiteGraph:
    query, key = mask.nonzero().unbind(1)
    return BipartiteGraph.from_edge_index(torch.stack([key, query]),
                                          mask.size(0), mask.size(1))


def band(num_queries: int, num_keys: int, before: int, after: int) -> Tensor:
    offset = torch.arange(num_keys) - torch.arange(num_queries)[:, None]
    return (offset >= -before) & (offset <= after)


def blocks(*lengths: int) -> Tensor:
    return torch.block_diag(*(torch.ones(length, length) for length in lengths)).bool()


def mixed() -> Tensor:
    """A window, of which some rows also have keys far away, none, or all."""
    mask = band(200, 200, 70, 70)
    mask[137], mask[138], mask[164:170] = True, False, False
    mask[::30, 5::11] = True
    return mask


def random() -> Tensor:
    return torch.rand(50, 60, generator=torch.Generator().manual_seed(0)) < .5


MASKS = {'window': band(200, 200, 70, 70), 'window cut by the panel': band(199, 199, 140, 0),
         'causal': band(250, 250, 250, 0), 'ahead': band(160, 250, 0, 250),
         'complete': torch.ones(50, 170).bool(), 'one key': torch.ones(40, 1).bool(),
         'blocks': blocks(128, 128), 'ragged blocks': blocks(5, 120, 1, 136, 12),
         'empty rows': band(250, 100, 70, 70), 'mixed': mixed(),
         'sinks': band(200, 200, 70, 0) | (torch.arange(200) < 4),
         'pairs of blocks': blocks(70, 70, 70).logical_not(), 'random': random(),
         'rows apart': torch.ones(130, 130).bool().tril().repeat(2, 1)}


def draw(graph: BipartiteGraph, width: int = 20, heads: int = 2, kv_heads: int = 2,
         value_width: int | None = None, dtype: torch.dtype = torch.float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((graph.num_queries, heads, width), (graph.num_keys, kv_heads, width),
              (graph.num_keys, kv_heads, value_width or width))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_()
            for shape in shapes]


def run(graph: BipartiteGraph, inputs: list[Tensor], backend: str = 'numba', **options: object
        ) -> list[Tensor]:
    """Return the output and all gradients."""
    out = edge_attention(*inputs, graph, backend=backend, **options)
    slope = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    edge_values = [x for x in options.values() if isinstance(x, Tensor) and x.requires_grad]
    return [out, *torch.autograd.grad((out * slope).sum(), inputs + edge_values)]


def assert_equals_the_definition(graph: BipartiteGraph, inputs: list[Tensor],
                                 **options: object) -> None:
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wide = {name: x.detach().double().requires_grad_() if isinstance(x, Tensor) else x
            for name, x in options.items()}
    for expected, got in zip(run(graph, exact, 'gather', **wide), run(graph, inputs, **options)):
        torch.testing.assert_close(got.double(), expected, rtol=2e-4, atol=4e-5)


def are_tiled(graph: BipartiteGraph, most: float) -> list[bool]:
    """Return for each segment whether tiles take the time of at most ``most`` pairs for each
    edge, with heads of 64 channels."""
    edges = edges_by_query(graph)
    return in_tiles(edges, most, 64).tolist()


@pytest.mark.parametrize('pattern, forward, backward', [
    (SlidingWindow(64), True, True), (SlidingWindow(64, causal=True), False, True),
    (Causal(), True, True), (ShiftedWindows(64, ()), True, True), (Full(), True, True),
    (SlidingWindow(8), False, False), (SlidingWindow(64, dilation=2), False, False),
    (RandomKeys(128), False, False)], ids=str)
def test_tiles_are_chosen_where_they_take_less_time(pattern, forward, backward):
    graph = pattern.build(512, seed=0)
    assert are_tiled(graph, MOST) == [forward] and are_tiled(graph, MOST_BACKWARD) == [backward]


def test_each_sequence_of_a_batch_is_processed_in_its_own_way(monkeypatch):
    masks = band(150, 150, 70, 70), random(), torch.ones(90, 90).bool()
    graph = BipartiteGraph.batch([of_mask(mask) for mask in masks])
    assert are_tiled(graph, 4.) == [True, False, True]
    monkeypatch.setattr(cpu, 'MOST', 4.)
    monkeypatch.setattr(cpu, 'MOST_BACKWARD', 4.)
    assert_equals_the_definition(graph, draw(graph, 64, heads=4))


@pytest.mark.parametrize('name', MASKS)
def test_all_ranges_equal_the_definition(name):
    graph = of_mask(MASKS[name])
    assert_equals_the_definition(graph, draw(graph))


@pytest.mark.parametrize('width', [1, 7, 16, 33, 64, 130])
def test_every_width_equals_the_definition(width):
    graph = of_mask(MASKS['window'])
    assert_equals_the_definition(graph, draw(graph, width, value_width=131 - width))


@pytest.mark.parametrize('options', [
    {'bias': True}, {'bias': True, 'gate': True, 'softcap': 2.}, {'dropout_p': .3}])
def test_terms_of_edges_equal_the_definition(options):
    graph = of_mask(MASKS['mixed'])
    made = torch.Generator().manual_seed(1)
    values = {f'edge_{name}': torch.randn(graph.num_edges, 2, generator=made).requires_grad_()
              for name in ('bias', 'gate') if options.get(name)}
    options = {name: x for name, x in options.items() if name not in ('bias', 'gate')}
    torch.manual_seed(3)
    if 'dropout_p' not in options:
        assert_equals_the_definition(graph, draw(graph), **values, **options)
    else:
        results = []
        for backend, dtype in (('numba', torch.float), ('numba', torch.double)):
            torch.manual_seed(3)
            results.append(run(graph, draw(graph, dtype=dtype), backend, **options))
        for got, expected in zip(*results):
            torch.testing.assert_close(got.double(), expected, rtol=2e-4, atol=4e-5)


def test_heads_that_share_keys_equal_the_definition():
    graph = of_mask(MASKS['causal'])
    assert_equals_the_definition(graph, draw(graph, heads=6, kv_heads=2))


def test_batches_of_several_lengths_equal_the_definition():
    graph = BipartiteGraph.batch([of_mask(band(n, n, 70, 70)) for n in (150, 3, 199, 91)])
    assert_equals_the_definition(graph, draw(graph))


@pytest.mark.slow
def test_ranges_that_cross_chunks_equal_the_definition():
    graph = BipartiteGraph.from_edge_index(SlidingWindow(30).build(3000).edge_index, 3000)
    assert_equals_the_definition(graph, draw(graph, 128, heads=1, kv_heads=1))


def test_large_logits_equal_the_definition():
    graph = of_mask(MASKS['window'])
    query, key, value = draw(graph)
    out = edge_attention(query * 1e2, key * 1e2, value, graph, backend='numba')
    exact = [x.double() for x in (query * 1e2, key * 1e2, value)]
    expected = edge_attention(*exact, graph, backend='gather')
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize('node', [0, 33, 50, 70])
def test_a_node_that_is_not_a_key_reaches_nothing(node):
    """Its rows lie inside of tiles."""
    mask = torch.ones(200, 200).bool()
    mask[:, :node + 1], mask[node] = False, False
    graph, inputs = of_mask(mask), draw(of_mask(mask))
    with torch.no_grad():
        for x in inputs:
            x[node] = torch.nan
    out, *grads = run(graph, inputs)
    assert all(x[torch.arange(200) != node].isfinite().all() for x in (out, *grads))


@pytest.mark.parametrize('name', ['window', 'causal', 'complete', 'mixed', 'sinks', 'random'])
def test_rows_see_only_their_own_range(name):
    """Keys and queries outside of a row's range are divergent, in the same tile."""
    mask = MASKS[name]
    graph = of_mask(mask)
    query, key, value = draw(graph)
    last = graph.num_queries // 2
    with torch.no_grad():
        key[last + 1:], value[last + 1:] = torch.nan, torch.inf
    out, grad_query, *_ = run(graph, [query, key, value])
    is_clean = ~mask[:, last + 1:].any(1)
    assert out[is_clean].isfinite().all() and grad_query[is_clean].isfinite().all()
    query, key, value = draw(graph)
    with torch.no_grad():
        query[last:] = torch.nan
    _, _, grad_key, grad_value = run(graph, [query, key, value])
    is_clean = ~mask[last:].any(0)
    assert grad_key[is_clean].isfinite().all() and grad_value[is_clean].isfinite().all()


@pytest.mark.parametrize('name', ['window', 'mixed', 'ragged blocks'])
def test_bits_do_not_depend_on_the_number_of_threads(name, monkeypatch):
    monkeypatch.setattr(schedule, 'GRAIN', 1)
    before, graph = torch.get_num_threads(), of_mask(MASKS[name])
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(run(graph, draw(graph)))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(got, expected) for got, expected in zip(others, results[0]))
