"""Attention by tiles, beside rows of edges: who takes which, and that both say the same."""

from itertools import product

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.patterns import GlobalTokens, RandomKeys, SlidingWindow
from tests.graphs import GRAPHS, random_graph
from tests.ops import test_backends as contract
from tests.ops.triton.interpreter import interpreted
from tests.ops.triton.test_triton import attend, examine, inputs

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from graphattn.ops.attention import triton_tiles as tiles  # noqa: E402
from graphattn.ops.triton import tiles as plans  # noqa: E402
from graphattn.ops.triton.softmax import Terms  # noqa: E402

pytestmark = pytest.mark.filterwarnings('ignore::RuntimeWarning')


PLAIN = Terms.of(None, None, None, 1., 0.)


def demand(edges_of_a_tile, monkeypatch):
    """Heads of every width go by tiles that have so many."""
    monkeypatch.setattr(tiles, 'EDGES_OF_A_TILE',
                        dict.fromkeys(tiles.EDGES_OF_A_TILE, edges_of_a_tile))


def by(edges_of_a_tile, monkeypatch, graph, tensors, **options):
    """Output and gradients, tiles having at least so many edges."""
    demand(edges_of_a_tile, monkeypatch)
    with interpreted():
        return attend('triton', graph, *tensors, **options)


def assert_same(monkeypatch, graph, tensors, expected=None, **options):
    """Assert that tiles alone give what rows alone give, or what is expected."""
    if expected is None:
        expected = by(10**9, monkeypatch, graph, tensors, **options)
    actual = by(1, monkeypatch, graph, tensors, **options)
    for part, other in zip(actual, expected):
        scale = other.nan_to_num(0., 0., 0.).abs().max().clamp(min=1).item() if other.numel() else 1
        torch.testing.assert_close(part.double(), other.double(), rtol=2e-2, atol=1e-2 * scale,
                                   equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize('name, dtype', [
    ('hub', torch.float16), *product(['ragged_rectangles', 'hub', 'more_queries', 'no_edges',
                                      'graph_per_head', 'no_keys'], [torch.bfloat16])])
def test_equals_rows(name, dtype, monkeypatch):
    graph = GRAPHS[name]()
    assert_same(monkeypatch, graph, inputs(graph, 2, 2, 8, 2, dtype))


@pytest.mark.slow
@pytest.mark.parametrize('channels', [20, 128])
def test_equals_rows_at_every_width(channels, monkeypatch):
    graph = random_graph(70, 40, 0.3)
    assert_same(monkeypatch, graph, inputs(graph, 2, 1, channels, 2, torch.bfloat16))


def far_from_one_another():
    mask = torch.rand(70, 300) < 0.3
    mask[:, 20:270] = False
    return BipartiteGraph.from_mask(mask)


@pytest.mark.slow
@pytest.mark.parametrize('graph, heads, dropout_p', [
    (far_from_one_another, 1, 0.), (lambda: random_graph(66, 70, 0.2), 2, 0.3),
    (lambda: BipartiteGraph.batch([random_graph(50, 44, 0.5), random_graph(45, 54, 0.5)]), 1, 0.)],
    ids=['far', 'close', 'batch'])
def test_many_tiles_are_cut_into_parts(graph, heads, dropout_p, monkeypatch):
    """Some of which have no edges, where these are far from one another."""
    graph, sizes = graph(), []
    tensors = inputs(graph, heads, 1, 4, heads, torch.bfloat16)
    monkeypatch.setattr(plans, '_SHARE_OF_A_PART', 16)
    monkeypatch.setattr(plans, '_TILES_OF_A_PART', 10**6)
    expected = by(1, monkeypatch, graph, tensors, dropout_p=dropout_p)
    monkeypatch.setattr(plans, '_TILES_OF_A_PART', 1)
    monkeypatch.setattr(plans, '_tasks', recording(sizes, plans._tasks))
    actual = by(1, monkeypatch, graph, tensors, dropout_p=dropout_p)
    assert len(sizes) == 2 and min(sizes) >= 2
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=5e-3)


def recording(sizes, make):
    """``make``, and the most parts that some 64 rows were cut into."""
    def made(*arguments):
        tasks = make(*arguments)
        sizes.append(1 + tasks.more[1].max().item())
        return tasks
    return made


def test_parts_are_no_more_than_there_is_memory_for(monkeypatch):
    monkeypatch.setattr(plans, '_SHARE_OF_A_PART', 100)
    for heads, sizes in product((1, 3, 40, 200), ([900], [0, 1], [33] * 50, [*range(90)])):
        num_tiles = torch.tensor(sizes, dtype=torch.int32)
        totals = torch.stack([num_tiles.sum(), num_tiles.count_nonzero()]).int()
        with interpreted():
            tasks = plans._tasks(num_tiles, totals, 2**30, heads)
        if tasks.max_more == 0:
            continue
        place_of_more, (_, more) = tasks.place_of_more[:-1], tasks.more
        assert more.sum() == tasks.most <= tasks.max_more
        assert torch.equal(place_of_more[:tasks.most].bincount(minlength=len(sizes)), more)
        assert (place_of_more[tasks.most:] == len(sizes)).all()
        assert tasks.parts(heads, 1, torch.float).size(1) >= 64 * (tasks.max_more + tasks.most)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_results_are_within_rounding(dtype, monkeypatch):
    demand(1, monkeypatch)
    with interpreted():
        for check, name in (('half precision', 'square, '), ('softcap', ''), ('sink', '')):
            examine(check, f'{name}{dtype}'.replace('torch.', ''))


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_gradients_are_as_exact_as_products_of_rounded_weights(dtype, monkeypatch):
    """Weights are summed as they are rounded, so that equal values come out unchanged; else the
    gradients of logits, which are small differences here, would be wrong."""
    demand(1, monkeypatch)
    graph = GRAPHS['hub']()
    inputs = contract.draw(graph, 'per_edge_and_head', dtype=dtype)
    inputs['value'] = (inputs['value'] / 64 + 8).to(dtype)
    with interpreted():
        results = contract.train(graph, inputs, 'triton')
    expected = contract.train(graph, contract.in_double(inputs), 'reference')
    for name, right in expected.items():
        error = (results[name].double() - right).abs().max() / right.abs().max()
        assert error < 2 * torch.finfo(dtype).eps, (name, error)


@pytest.mark.slow
@pytest.mark.parametrize('heads, num_kv_heads, dropout_p', [(2, 2, 0.3), (4, 2, 0.), (4, 1, 0.3)])
def test_dropout_and_shared_keys(heads, num_kv_heads, dropout_p, monkeypatch):
    """Values are those of a CPU."""
    graph = random_graph(70, 40, 0.3)
    tensors = inputs(graph, heads, num_kv_heads, 4, heads, torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = attend('numba', graph, *exact, dropout_p=dropout_p)
    assert_same(monkeypatch, graph, tensors, expected, dropout_p=dropout_p)


@pytest.mark.slow
@pytest.mark.parametrize('part, poison, softcap', [
    (0, torch.nan, None), (1, torch.nan, None), (2, torch.nan, None), (1, torch.inf, None),
    (0, torch.inf, 2.)])
def test_non_finite_values_pass_along_edges(part, poison, softcap, monkeypatch):
    graph = GRAPHS['hub']()
    tensors = inputs(graph, 1, 1, 4, 1, torch.bfloat16)
    tensors[part].data[7, 0, 1] = poison
    assert_same(monkeypatch, graph, tensors, softcap=softcap)


@pytest.mark.slow
def test_some_rows_by_tiles_and_the_others_one_by_one(monkeypatch):
    """And long ones of these in parts, which those of tiles are not."""
    mask = torch.rand(140, 40) < 0.02
    mask[:30], mask[100] = True, True
    graph = BipartiteGraph.from_mask(mask)
    tensors = inputs(graph, 1, 1, 4, 1, torch.bfloat16)
    expected = by(10**9, monkeypatch, graph, tensors)
    monkeypatch.setattr('graphattn.ops.triton.rows.EDGES_OF_A_PART', 16)
    actual = by(100, monkeypatch, graph, tensors)
    assert chosen(graph) == [True, False, False]
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def chosen(graph, channels=8, dtype=torch.bfloat16):
    with interpreted():
        found = tiles.plan(*graph.csr, graph.num_keys, 1, channels, dtype, PLAIN)
    none = [False] * -(-graph.num_queries // 64)
    return none if found is None else (found.num_tiles > 0).tolist()


@pytest.mark.slow
@pytest.mark.parametrize('pattern, expected', [
    (SlidingWindow(32), [True] * 4), (RandomKeys(4), [False] * 4), (RandomKeys(128), [True] * 4),
    (SlidingWindow(0), [False] * 4), (SlidingWindow(0) | GlobalTokens(1), [False] * 4),
    (SlidingWindow(0) - SlidingWindow(0), [False] * 4)], ids=str)
def test_locally_dense_edges_use_tiles(pattern, expected, monkeypatch):
    assert chosen(pattern.build(256, seed=0)) == expected


@pytest.mark.slow
@pytest.mark.parametrize('density', [0., 0.01, 0.06, 0.2, 1.])
def test_the_plan_lists_the_tiles_that_have_edges(density):
    """Of blocks whose tiles have enough of them; where all pairs are edges, behind the others."""
    mask = torch.rand(150, 300) < density
    mask[3], mask[64:128, 128:192] = True, True
    graph, edges = BipartiteGraph.from_mask(mask), 110
    with interpreted():
        plan = plans.plan(*graph.csr, graph.num_keys, 1, 1)
        num_tiles, num_full, totals = plans.count(*graph.csr, graph.num_keys, edges)
    padded = torch.zeros(192, 320, dtype=torch.bool)
    padded[:150, :300] = mask
    in_tiles = padded.view(3, 64, 5, 64).transpose(1, 2)
    number = in_tiles.sum((2, 3))
    is_chosen = (number.sum(1) >= edges * (number > 0).sum(1)) & (number.sum(1) > 0)
    assert num_tiles.tolist() == ((number > 0).sum(1) * is_chosen).tolist()
    assert num_full.tolist() == ((number == 64**2).sum(1) * is_chosen).tolist()
    assert totals.tolist() == [num_tiles.sum(), num_tiles.count_nonzero()]
    first_edge = torch.cat([torch.zeros(1, dtype=torch.long), padded.sum(1).cumsum(0)])
    for block in range(3):
        first, end = plan.first[block], plan.first[block] + plan.num_tiles[block]
        listed = plan.column[first:end].long()
        full = number[block, listed] == 64**2
        assert sorted(listed.tolist()) == number[block].nonzero().flatten().tolist()
        assert torch.equal(full, full.sort()[0]) and full.sum() == plan.num_full[block]
        words = plan.bits[first:end].long().unsqueeze(-1) >> torch.arange(32) & 1
        assert torch.equal(words.flatten(2) == 1, in_tiles[block, listed])
        before = [padded[:, :64 * column].sum(1) for column in listed.tolist()]
        rows = slice(64 * block, 64 * block + 64)
        has_rows = torch.arange(192)[rows] < 150
        for tile, edges_before in zip(plan.edge[first:end], before, strict=True):
            expected = (first_edge[:-1] + edges_before)[rows] - first_edge[64 * block]
            assert torch.equal(tile.long() * has_rows, expected * has_rows)


def test_edge_terms_raise_the_threshold_of_tiles():
    one = torch.ones(1, 1)
    terms = PLAIN, PLAIN._replace(bias=one), PLAIN._replace(gate=one), PLAIN._replace(seed=one)
    fewest, *others = (tiles.edges_of_a_tile(64, torch.bfloat16, each) for each in terms)
    assert fewest == tiles.EDGES_OF_A_TILE[64] < min(others)


def test_unsupported_widths_and_dtypes_use_rows():
    graph = random_graph(64, 32, 1.)
    assert not any(chosen(graph, dtype=torch.float32) + chosen(graph, channels=129))
    assert all(chosen(graph, channels=128))
    assert tiles.plan(*graph.csr, plans.MAX_COLUMNS + 1, 1, 128, torch.bfloat16, PLAIN) is None
