"""Graphs segment by segment, and in the sparse formats of other libraries."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.layers import fold_heads, unfold_heads
from graphattn.patterns import Causal, Full, GlobalTokens, Pattern, RandomKeys, SlidingWindow
from tests.graphs import GRAPHS

PATTERNS: list[Pattern] = [SlidingWindow(3) | GlobalTokens(1), RandomKeys(5), Full(), Causal(),
                           Full() - Full()]


@pytest.mark.parametrize('name', GRAPHS)
def test_unbatch_takes_apart_what_batch_has_joined(name):
    graph = GRAPHS[name]()
    segments = graph.unbatch()
    assert len(segments) == graph.num_segments
    if segments:
        assert BipartiteGraph.batch(segments) == graph
        assert BipartiteGraph.batch(segments).unbatch() == segments


@pytest.mark.parametrize('arguments, match', [
    (dict(sequence=6), "'sequence' must be at most 5"), (dict(sequence=-1), 'not be negative'),
    (dict(sequence=3, heads=2), "'sequence' must be at most 2"),
    (dict(sequence=0, head=2, heads=2), "'head' must be at most 1"),
    (dict(sequence=0, heads=4), "'heads' must.*.got 4"),
])
def test_a_segment_that_is_not_there_is_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        BipartiteGraph.batch([Full().build(2)] * 6).segment(**arguments)


# FlexAttention #######################################################################


def graphs_of_heads(pattern: Pattern, heads: int, sizes: tuple[int, int]) -> list[BipartiteGraph]:
    return [pattern.build(*sizes, seed=head) for head in range(heads)]


@pytest.mark.parametrize('is_compact', [False, True])
@pytest.mark.parametrize('heads, sizes', [(1, (50, 50)), (3, (50, 50)), (2, (32, 40)),
                                          (1, (7, 5))])
@pytest.mark.parametrize('pattern', PATTERNS, ids=str)
def test_tiles_are_those_that_torch_finds_in_the_mask(pattern, heads, sizes, is_compact):
    graphs = graphs_of_heads(pattern, heads, sizes)
    mask = torch.stack([graph.to_mask() for graph in graphs])
    expected = create_block_mask(lambda b, h, q, k: mask[h, q, k], 1, heads, *sizes, device='cpu',
                                 BLOCK_SIZE=16)
    actual = BipartiteGraph.batch(graphs).to_block_mask(heads, tile=16, is_compact=is_compact)
    assert actual.shape == expected.shape == (1, heads, *sizes)
    for part in ('kv_num_blocks', 'full_kv_num_blocks', 'q_num_blocks', 'full_q_num_blocks'):
        assert torch.equal(getattr(actual, part), getattr(expected, part))
    for part in ('kv_indices', 'full_kv_indices', 'q_indices', 'full_q_indices'):
        own, whole = getattr(actual, part), getattr(expected, part)
        counts = getattr(expected, part.replace('indices', 'num_blocks'))
        is_used = torch.arange(own.size(-1)) < counts.unsqueeze(-1)
        assert torch.equal(own[is_used], whole[..., :own.size(-1)][is_used])
        assert own.size(-1) == (max(int(counts.max()), 1) if is_compact else whole.size(-1))


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')  # that it is not compiled
@pytest.mark.parametrize('pattern', PATTERNS[:4], ids=str)
def test_flex_attention_attends_along_the_graph(pattern):
    graph = BipartiteGraph.batch(graphs_of_heads(pattern, 2, (20, 20)))
    query, key, value = torch.randn(3, 20, 2, 8)
    out = flex_attention(*(x.transpose(0, 1)[None] for x in (query, key, value)),
                         block_mask=graph.to_block_mask(2, tile=16))
    expected = unfold_heads(edge_attention(*map(fold_heads, (query, key, value)), graph), 2)
    torch.testing.assert_close(out[0].transpose(0, 1), expected)


def test_heads_that_are_not_apart_are_refused():
    with pytest.raises(ValueError, match="'heads' must.*got 8 edges between different heads"):
        Full().build(4).to_block_mask(heads=2)
    with pytest.raises(ValueError, match="'heads' must divide the numbers of queries and keys"):
        Full().build(4).to_block_mask(heads=3)
