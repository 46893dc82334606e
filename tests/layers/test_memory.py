"""Queries that are not the keys."""

import pytest
import torch

from graphattn.layers import GraphAttention
from graphattn.patterns import Full, GlobalTokens, RandomKeys, RandomRegular, SlidingWindow
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource

PTR, MEMORY_PTR = torch.tensor([0, 3, 3, 7]), torch.tensor([0, 5, 7, 12])
SOURCES = {
    'window': lambda: PatternSource(SlidingWindow(1) | GlobalTokens(1)),
    'full': lambda: PatternSource(Full()),
    'of each head': lambda: PatternSource([SlidingWindow(1), RandomKeys(2)]),
    'drawn anew': lambda: PatternSource(RandomKeys(2), seed=None),
    'block model': lambda: BlockModelSource(2, 4, 3),
    'block model and window': lambda: BlockModelSource(2, 4, 3, fixed='SlidingWindow(1)'),
}


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(7, 8), torch.randn(12, 8)


@pytest.mark.parametrize('name', SOURCES)
def test_queries_attend_to_the_memory_of_their_sequence(name):
    attention, (x, memory) = GraphAttention(8, 2, SOURCES[name]()), tokens()
    out, graph = attention(x, PTR, memory=memory, memory_ptr=MEMORY_PTR, return_graph=True)
    times = 2 if attention.source.per_head else 1
    assert (graph.num_queries, graph.num_keys, graph.num_segments) == (7 * times, 12 * times,
                                                                       3 * times)
    out.square().sum().backward()
    changed = memory.clone()
    changed[5:] += 1  # of the other sequences
    again = attention(x, PTR, memory=changed, memory_ptr=MEMORY_PTR, graph=graph)
    torch.testing.assert_close(again[:3], out[:3])
    assert not torch.allclose(again[3:], out[3:])


def test_arguments_for_self_attention_are_refused_by_name():
    x, memory = tokens()
    given = dict(memory=memory, memory_ptr=MEMORY_PTR)
    with pytest.raises(ValueError, match="'key_ptr' must be None for a learned mask"):
        GraphAttention(8, 2, LearnedMaskSource(2, 12))(x, PTR, **given)
    with pytest.raises(ValueError, match="'num_keys' must equal 'num_queries' for a regular"):
        more = torch.tensor([0, 12])
        GraphAttention(8, 2, PatternSource(RandomRegular(2)))(
            memory, more, memory=x, memory_ptr=torch.tensor([0, 7]))
    with pytest.raises(ValueError, match='equal numbers of keys and queries in every segment'):
        GraphAttention(8, 2, PatternSource(Full()), hops=2)(x, PTR, **given)


@pytest.mark.parametrize('given, match', [
    (dict(memory=torch.randn(12, 8)), "'memory_ptr' must be given with 'memory'"),
    (dict(memory_ptr=MEMORY_PTR), "'memory' must be given with 'memory_ptr'"),
    (dict(memory=torch.randn(12, 5), memory_ptr=MEMORY_PTR), "'memory' must.*.num_tokens, 8."),
    (dict(memory=torch.randn(11, 8), memory_ptr=MEMORY_PTR), "'memory_ptr' must rise from 0 to 11"),
    (dict(memory=torch.randn(12, 8), memory_ptr=MEMORY_PTR[[0, 3]]),
     "'memory_ptr' must mark.*3 sequences.*'ptr'.*got 1"),
])
def test_a_memory_that_does_not_fit_is_refused(given, match):
    with pytest.raises(ValueError, match=match):
        GraphAttention(8, 2, PatternSource(Full()))(torch.randn(7, 8), PTR, **given)
