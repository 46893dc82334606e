import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.pair_mask import FreeLayout
from graphattn.patterns import GlobalTokens, Mask, RandomKeys, SlidingWindow, save_masks
from graphattn.sources import PatternSource, pattern_source

PTR = torch.tensor([0, 6, 12, 15])
TOKENS = torch.randn(15, 1, 2)


def test_each_sequence_gets_the_pattern_of_its_length():
    graph = PatternSource(SlidingWindow(1))(TOKENS, TOKENS, PTR)
    assert graph == BipartiteGraph.batch([SlidingWindow(1).build(n) for n in (6, 6, 3)])


@pytest.mark.parametrize('seed', [3, None])
def test_a_short_sequence_gets_the_graph_of_a_longer_one_cropped(seed):
    generator, again = (torch.Generator().manual_seed(3) for _ in range(2))
    pattern = RandomKeys(4)
    graph = PatternSource(pattern, seed)(TOKENS, TOKENS, PTR, generator=generator)
    assert graph == BipartiteGraph.batch([
        pattern.build(n, seed=again if seed is None else seed, crop=True) for n in (6, 6, 3)])
    assert 0 < graph.in_degree()[12:].max() < 4


def test_a_sequence_longer_than_a_mask_stays_an_error():
    with pytest.raises(ValueError, match=r"'length' must not exceed the 2 tokens of the mask"):
        PatternSource(Mask(FreeLayout(2), '1001'))(TOKENS, TOKENS, PTR)


def test_a_seeded_random_pattern_is_one_graph_per_length():
    source = PatternSource(RandomKeys(2), seed=3)
    first, again = source(TOKENS, TOKENS, PTR), source(TOKENS, TOKENS, PTR)
    assert first == again
    assert torch.equal(first.to_mask()[:6, :6], first.to_mask()[6:12, 6:12])
    assert torch.equal(first.to_mask()[:6, :6], RandomKeys(2).build(6, seed=3).to_mask())


def test_an_unseeded_random_pattern_is_drawn_anew():
    source = PatternSource(RandomKeys(2), seed=None)
    first, again = source(TOKENS, TOKENS, PTR), source(TOKENS, TOKENS, PTR)
    assert first != again
    assert not torch.equal(first.to_mask()[:6, :6], first.to_mask()[6:12, 6:12])


@pytest.mark.parametrize('pattern', [3, [3], None])
def test_needs_a_pattern(pattern):
    with pytest.raises(TypeError, match="'pattern' must be a Pattern or a str, or one for each"):
        PatternSource(pattern)


def test_a_pattern_may_be_an_expression():
    assert PatternSource('SlidingWindow(1) | GlobalTokens(2)').patterns == (
        SlidingWindow(1) | GlobalTokens(2),)


def test_heads_may_have_a_pattern_each():
    source = PatternSource([SlidingWindow(1), 'GlobalTokens(2)'])
    tokens = torch.randn(15, 2, 2)
    assert source(tokens, tokens, PTR) == BipartiteGraph.batch(
        [pattern.build(n) for pattern in (SlidingWindow(1), GlobalTokens(2)) for n in (6, 6, 3)])
    assert source.per_head and 'Sliding' not in repr(source)
    with pytest.raises(ValueError, match="'pattern' is empty"):
        PatternSource([])


@pytest.mark.parametrize('seed', [3, None])
def test_heads_draw_apart(seed):
    tokens = torch.randn(6, 2, 2)
    graph = PatternSource([RandomKeys(2)] * 2, seed)(tokens, tokens, torch.tensor([0, 6]))
    assert not torch.equal(graph.to_mask()[:6, :6], graph.to_mask()[6:, 6:])


def test_masks_may_come_from_a_file(tmp_path):
    masks = tuple(Mask(FreeLayout(2), values) for values in ('1001', '1011'))
    save_masks(tmp_path / 'masks.npz', masks)
    for path in (tmp_path / 'masks.npz', str(tmp_path / 'masks.npz')):
        source = PatternSource(path)
        assert source.patterns == masks and source.heads == source.max_length == 2
    with pytest.raises(FileNotFoundError, match="'path' must be a file of masks"):
        PatternSource('missing.npz')
    with pytest.raises(ValueError, match="must have a head for each of the 2 patterns"):
        source(TOKENS, TOKENS, PTR)


def lengths_built(source, lengths, monkeypatch):
    """Which lengths are built anew when sequences of these lengths come, one batch each."""
    built = []
    build = SlidingWindow.build
    monkeypatch.setattr(SlidingWindow, 'build', lambda self, length, **options: (
        built.append(length) or build(self, length, **options)))
    for length in lengths:
        tokens = torch.zeros(length, 1, 2)
        graph = source(tokens, tokens, torch.tensor([0, length]))
        assert graph == build(SlidingWindow(0), length)
    monkeypatch.undo()
    return built


def test_the_graphs_that_were_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(pattern_source, 'MAX_EDGES_KEPT', 60)
    source = PatternSource(SlidingWindow(0))  # as many edges as tokens
    with monkeypatch.context() as patch:
        assert lengths_built(source, [10, 20, 30, 10], patch) == [10, 20, 30]
        assert lengths_built(source, [5], patch) == [5]  # 20 goes, unused for longest
        assert lengths_built(source, [10, 30, 5, 20, 10], patch) == [20, 10]
        assert lengths_built(source, [61, 20, 10], patch) == [61]  # too large to displace others
        assert lengths_built(source, [61], patch) == [61]
    assert source._num_edges_kept == sum(g.num_edges for g in source._kept.values()) <= 60


def test_what_is_kept_is_bounded_over_many_lengths():
    source = PatternSource(SlidingWindow(64))  # 100 graphs of 129,000 edges or more
    for length in range(1100, 1200):
        tokens = torch.zeros(length, 1, 2)
        source(tokens, tokens, torch.tensor([0, length]))
        assert sum(g.num_edges for g in source._kept.values()) <= pattern_source.MAX_EDGES_KEPT


def test_a_large_graph_is_built_once_for_a_batch(monkeypatch):
    monkeypatch.setattr(pattern_source, 'MAX_EDGES_KEPT', 5)
    source = PatternSource(SlidingWindow(0))
    built = []
    build = SlidingWindow.build
    monkeypatch.setattr(SlidingWindow, 'build', lambda self, length, **options: (
        built.append(length) or build(self, length, **options)))
    source(TOKENS, TOKENS, PTR)
    assert sorted(built) == [3, 6]
