import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.patterns import GlobalTokens, RandomKeys, SlidingWindow
from graphattn.sources import PatternSource

PTR = torch.tensor([0, 6, 12, 15])
TOKENS = torch.randn(15, 1, 2)


def test_each_sequence_gets_the_pattern_of_its_length():
    graph = PatternSource(SlidingWindow(1))(TOKENS, TOKENS, PTR)
    assert graph == BipartiteGraph.batch([SlidingWindow(1).build(n) for n in (6, 6, 3)])


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


def test_needs_a_pattern():
    with pytest.raises(TypeError, match="'pattern' must be a Pattern or a str .got int"):
        PatternSource(3)


def test_a_pattern_may_be_an_expression():
    assert PatternSource('SlidingWindow(1) | GlobalTokens(2)').pattern == (
        SlidingWindow(1) | GlobalTokens(2))
