"""Lists of edges: their text, and how they print. What they build is in the contract."""

import pickle

import pytest
import torch

from graphattn.graphs.pair_layout import FreeLayout
from graphattn.patterns import Causal, EdgeList, Mask, Offsets, SlidingWindow
from graphattn.sources import PatternSource


def random_list(tokens=300, count=4):
    generator = torch.Generator().manual_seed(0)
    query = torch.arange(tokens).repeat_interleave(count)
    return EdgeList(tokens, torch.stack([torch.randint(tokens, query.shape, generator=generator),
                                         query]))


def test_order_and_repetition_do_not_matter():
    edges = torch.tensor([[2, 0, 2, 1], [0, 1, 0, 2]])
    one, other = EdgeList(3, edges), EdgeList(3, edges[:, [3, 1, 0]])
    assert one == other and hash(one) == hash(other) and str(one) == 'EdgeList(3 tokens, 3 edges)'
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize('pattern, limit', [
    (random_list(30), 30), (random_list(30) | random_list(20), 20), (SlidingWindow(1), None),
    (Offsets((1,)), None), (Mask(FreeLayout(4), '1' * 16) & Causal(), 4)])
def test_the_longest_sequence_is_known_and_longer_ones_are_refused(pattern, limit):
    source = PatternSource(pattern)
    assert source.max_length == pattern.max_tokens == limit == source.causal().max_length
    if limit:
        pattern.build(limit)
        with pytest.raises(ValueError, match=f"'length' must be at most {limit}"):
            pattern.build(limit + 1)
