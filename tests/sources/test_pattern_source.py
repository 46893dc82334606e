from dataclasses import dataclass

import numpy as np
import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.graphs.pair_layout import FreeLayout
from graphattn.layers import fold_heads
from graphattn.patterns import Mask, Pattern, RandomKeys, SlidingWindow, save_masks
from graphattn.sources import PatternSource, pattern_source

PTR = torch.tensor([0, 6, 12, 15])
TOKENS = torch.randn(15, 1, 2)


@pytest.mark.parametrize('seed', [3, None])
def test_a_short_sequence_gets_the_graph_of_a_longer_one_cropped(seed):
    generator, again = (torch.Generator().manual_seed(3) for _ in range(2))
    pattern = RandomKeys(4)
    graph = PatternSource(pattern, seed)(TOKENS, TOKENS, PTR, generator=generator)
    assert graph == BipartiteGraph.batch([
        pattern.build(n, seed=again if seed is None else seed, crop=True) for n in (6, 6, 3)])
    assert 0 < graph.in_degree()[12:].max() < 4


def test_a_seeded_random_pattern_is_one_graph_per_length():
    source = PatternSource(RandomKeys(2), seed=3)
    first, again = source(TOKENS, TOKENS, PTR), source(TOKENS, TOKENS, PTR)
    assert first == again
    assert torch.equal(first.to_mask()[:6, :6], first.to_mask()[6:12, 6:12])
    assert torch.equal(first.to_mask()[:6, :6], RandomKeys(2).build(6, seed=3).to_mask())


def test_an_unseeded_random_pattern_is_drawn_in_every_call():
    source = PatternSource(RandomKeys(2), seed=None)
    first, again = source(TOKENS, TOKENS, PTR), source(TOKENS, TOKENS, PTR)
    assert first != again
    assert not torch.equal(first.to_mask()[:6, :6], first.to_mask()[6:12, 6:12])


@pytest.mark.parametrize('seed', [3, None])
def test_heads_draw_different_graphs(seed):
    tokens = torch.randn(6, 2, 2)
    graph = PatternSource([RandomKeys(2)] * 2, seed)(tokens, tokens, torch.tensor([0, 6]))
    assert not torch.equal(graph.to_mask()[:6, :6], graph.to_mask()[6:, 6:])


@pytest.mark.parametrize('seed', [0, 2**63 - 1, 2**64 - 1, -1, np.int64(3)])
def test_seeds_of_heads_count_modulo_two_to_the_64(seed):
    tokens = torch.randn(9, 2, 2)
    graph = PatternSource([RandomKeys(2)] * 2, seed)(tokens, tokens, torch.tensor([0, 9]))
    assert graph == BipartiteGraph.batch([
        RandomKeys(2).build(9, seed=seed), RandomKeys(2).build(9, seed=(int(seed) + 1) % 2**64)])


def test_masks_may_come_from_a_file(tmp_path):
    masks = tuple(Mask(FreeLayout(2), values) for values in ('1001', '1011'))
    save_masks(tmp_path / 'masks.npz', masks)
    for path in (tmp_path / 'masks.npz', str(tmp_path / 'masks.npz')):
        source = PatternSource(path)
        assert source.patterns == masks and source.heads == source.max_length == 2
    with pytest.raises(FileNotFoundError, match="'path' must be an existing file of masks"):
        PatternSource('missing.npz')
    with pytest.raises(ValueError, match="'query'.*2.*source"):
        source(TOKENS, TOKENS, PTR)


class Plain(Pattern):
    """A pattern that is no dataclass and can change."""

    def __init__(self, radius):
        self.radius = radius

    def edges(self, num_queries, num_keys, generator):
        return SlidingWindow(self.radius).edges(num_queries, num_keys, generator)


@dataclass(frozen=True, repr=False)
class Listed(Plain):
    """A pattern that cannot be hashed."""

    steps: list

    @property
    def radius(self):
        return len(self.steps)


@pytest.mark.parametrize('make', [
    Plain, lambda radius: Listed([0] * radius), lambda radius: Plain(radius) | SlidingWindow(0),
    lambda radius: [Plain(radius)]])
def test_a_mutable_pattern_is_built_in_every_call(make):
    for radius in (1, 2):
        source = PatternSource(make(radius))
        for _ in range(2):
            assert source(TOKENS, TOKENS, PTR) == PatternSource(SlidingWindow(radius))(
                TOKENS, TOKENS, PTR)
    plain = Plain(1)
    source = PatternSource(plain)
    source(TOKENS, TOKENS, PTR)
    plain.radius = 3
    assert source(TOKENS, TOKENS, PTR) == PatternSource(SlidingWindow(3))(TOKENS, TOKENS, PTR)


def test_sources_of_one_pattern_share_a_graph_and_others_do_not():
    def graph(pattern, seed=0):
        return PatternSource(pattern, seed)(TOKENS, TOKENS, PTR)

    assert graph(SlidingWindow(2)) is graph('SlidingWindow(2)', seed=4)
    assert graph(RandomKeys(2)) is graph(RandomKeys(2)) is not graph(RandomKeys(2), seed=1)
    assert graph(SlidingWindow(2)) is not graph(SlidingWindow(3))
    longer = torch.tensor([0, 6, 13, 15])
    assert graph(SlidingWindow(2)) != PatternSource(SlidingWindow(2))(TOKENS, TOKENS, longer)


def as_attention(source):
    """Attention written by hand, along the graph that ``source`` gives."""
    def attend(x, ptr):
        graph = source(x, x, ptr)
        x = fold_heads(x) if source.per_head else x
        weight = (x[graph.query] * x[graph.key]).sum(-1, keepdim=True).exp()
        weighted = torch.zeros_like(x).index_add(0, graph.query, weight * x[graph.key])
        total = torch.zeros_like(x[..., :1]).index_add(0, graph.query, weight)
        return weighted / total, graph.in_degree(), graph.query_ptr
    return attend


@pytest.mark.slow
@pytest.mark.parametrize('pattern', ['SlidingWindow(1) | GlobalTokens(1)',
                                     ['diffuser_repo', 'RandomKeys(2)']])
def test_compiles_without_graph_breaks(pattern):
    torch.compiler.reset()
    attend = as_attention(PatternSource(pattern))
    compiled = torch.compile(attend, fullgraph=True, backend='aot_eager')
    for ptr in ([0, 6, 12, 15], [0, 8, 8, 30], [0, 40]):
        ptr = torch.tensor(ptr)
        x = torch.randn(int(ptr[-1]), 2, 4)
        expected, *graph = attend(x.requires_grad_(), ptr)
        out, *compiled_graph = compiled(x, ptr)
        torch.testing.assert_close(out, expected)
        assert all(map(torch.equal, compiled_graph, graph))
        gradients = [torch.autograd.grad(y.sin().sum(), x)[0] for y in (out, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.slow
def test_the_operator_passes_opcheck():
    patterns = ['SlidingWindow(radius=1)', 'RandomKeys(count=2)']
    torch.library.opcheck(pattern_source.pattern_rows, (PTR, 15, patterns, 3))


@pytest.mark.slow
@pytest.mark.parametrize('strict', [True, False])
def test_exports_for_any_number_of_tokens_and_sequences(strict):
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.source = PatternSource(SlidingWindow(1))

        def forward(self, x, ptr):
            graph = self.source(x, x, ptr)
            return torch.zeros_like(x).index_add(0, graph.query, x[graph.key])

    module = Sum()
    shapes = {0: torch.export.Dim('tokens', max=2**16)}, {0: torch.export.Dim('ends', min=3)}
    exported = torch.export.export(module, (TOKENS, PTR), dynamic_shapes=shapes, strict=strict)
    x, ptr = torch.randn(30, 1, 2), torch.tensor([0, 8, 8, 20, 30])
    assert torch.equal(exported.module()(x, ptr), module(x, ptr))


def test_the_rows_of_a_cached_graph_are_not_modified():
    graph = PatternSource(SlidingWindow(1))(TOKENS, TOKENS, PTR)
    for rows in pattern_source.pattern_rows(PTR, 15, ['SlidingWindow(radius=1)'], None):
        rows.zero_()
    assert graph == BipartiteGraph.batch([SlidingWindow(1).build(n) for n in (6, 6, 3)])
