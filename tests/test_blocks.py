"""Blocks: which queries and keys belong together."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import pytest
import torch

from graphattn.graphs.blocks import Blocks, block_of, join_ptrs, sum_blocks
from tests.graphs import GRAPHS


def ptr(*ends: int) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.long)


BLOCKS = {
    'squares': (ptr(0, 2, 2, 5), ptr(0, 2, 2, 5)),
    'rectangles': (ptr(0, 2, 2, 3, 5), ptr(0, 3, 3, 5, 5)),
    'as many in all': (ptr(0, 2, 5), ptr(0, 3, 5)),
    'one': (ptr(0, 4), ptr(0, 7)),
    'empty': (ptr(0, 0), ptr(0, 3)),
    'none': (ptr(0), ptr(0)),
}
every_blocks = pytest.mark.parametrize('query_ptr, key_ptr', BLOCKS.values(), ids=BLOCKS)


@every_blocks
def test_sizes_follow_from_the_pointers(query_ptr, key_ptr):
    blocks = Blocks(query_ptr, key_ptr)
    queries, keys = query_ptr.diff().tolist(), key_ptr.diff().tolist()
    pairs = [num_queries * num_keys for num_queries, num_keys in zip(queries, keys)]
    assert len(blocks) == len(pairs)
    assert blocks.pairs_per_block().tolist() == pairs and blocks.num_pairs == sum(pairs)
    assert blocks.is_square == (queries == keys)
    for block, sizes in ((blocks.of_queries(), queries), (blocks.of_keys(), keys)):
        assert block.tolist() == [b for b, size in enumerate(sizes) for _ in range(size)]


@every_blocks
def test_transpose_twice_is_identity(query_ptr, key_ptr):
    blocks = Blocks(query_ptr, key_ptr)
    assert blocks.transpose() == Blocks(key_ptr, query_ptr)
    assert blocks.transpose().transpose() == blocks


@every_blocks
def test_copies(query_ptr, key_ptr):
    blocks = Blocks(query_ptr, key_ptr)
    for other in (copy.copy(blocks), copy.deepcopy(blocks), pickle.loads(pickle.dumps(blocks)),
                  blocks.to('cpu')):
        assert other == blocks and len(other) == len(blocks)
        assert (other.num_pairs, other.is_square) == (blocks.num_pairs, blocks.is_square)


def test_shared_pointers_stay_shared():
    shared = ptr(0, 2, 5)
    for blocks in (Blocks(shared, shared), Blocks.of(shared, None, (5, 5), shared.device)):
        for each in (blocks, blocks.to('meta'), blocks.transpose(), copy.deepcopy(blocks)):
            assert each.query_ptr is each.key_ptr
    with torch.inference_mode():
        shared = ptr(0, 2, 5)
        blocks = Blocks(shared, shared)
    assert blocks.query_ptr is blocks.key_ptr and not blocks.query_ptr.is_inference()


def test_moved_to_where_nothing_can_be_looked_at():
    moved = Blocks(ptr(0, 2), ptr(0, 3)).to('meta')
    assert moved.query_ptr.device == moved.key_ptr.device == torch.device('meta')


def test_equality():
    blocks = Blocks(ptr(0, 2, 5), ptr(0, 3, 5))
    assert blocks == Blocks(ptr(0, 2, 5), ptr(0, 3, 5))
    assert blocks != Blocks(ptr(0, 2, 5), ptr(0, 2, 5)) and blocks != Blocks(ptr(0, 5), ptr(0, 5))
    assert blocks != 'blocks'
    with pytest.raises(TypeError, match='unhashable'):
        hash(blocks)


@pytest.mark.parametrize('query_ptr, key_ptr, sizes, heads, expected', [
    (None, None, (4, 4), 1, ([0, 4], [0, 4])),
    (None, None, (4, 6), 1, ([0, 4], [0, 6])),
    (None, None, (4, 6), 2, ([0, 2, 4], [0, 3, 6])),
    (ptr(0, 1, 4), None, (4, 4), 1, ([0, 1, 4], [0, 1, 4])),
    (ptr(0, 4), None, (4, 6), 1, ([0, 4], [0, 6])),
    (ptr(0, 1, 4), ptr(0, 6, 6), (4, 6), 1, ([0, 1, 4], [0, 6, 6])),
    (None, None, (0, 0), 3, ([0, 0, 0, 0], [0, 0, 0, 0])),
])
def test_what_is_meant_where_pointers_are_omitted(query_ptr, key_ptr, sizes, heads, expected):
    blocks = Blocks.of(query_ptr, key_ptr, sizes, torch.device('cpu'), heads=heads)
    assert (blocks.query_ptr.tolist(), blocks.key_ptr.tolist()) == expected
    assert repr(blocks) == f'Blocks({expected[0]}, {expected[1]})'


@pytest.mark.parametrize('query_ptr, key_ptr, error, match', [
    (ptr(0, 2, 3), None, ValueError, r"'query_ptr' must rise from 0 to 4.*got \[0, 2, 3\]"),
    (ptr(0, 4), ptr(0, 7, 6), ValueError, r"'key_ptr' must rise from 0 to 6.*got \[0, 7, 6\]"),
    (ptr(0, 1, 4), None, ValueError, r"must mark as many blocks \(got 2 and 1\)"),
    (ptr(0, 4).int(), None, TypeError, "'query_ptr' must be an int64 Tensor"),
    (ptr(0, 4), ptr(0, 6).to('meta'), ValueError, "'key_ptr' must be on cpu.*got meta"),
])
def test_bad_pointers(query_ptr, key_ptr, error, match):
    with pytest.raises(error, match=match):
        Blocks.of(query_ptr, key_ptr, (4, 6), torch.device('cpu'))


# Pointers ############################################################################


@pytest.mark.parametrize('name', GRAPHS)
def test_sums_of_blocks(name):
    query_ptr = GRAPHS[name]().query_ptr
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(int(query_ptr[-1]), 3, generator=generator, requires_grad=True)
    expected = [value[begin:end].double().sum(0) for begin, end in pairwise(query_ptr.tolist())]
    expected = torch.stack(expected) if expected else torch.empty(0, 3, dtype=torch.double)
    total = sum_blocks(value, query_ptr)
    torch.testing.assert_close(total, expected)
    weight = torch.randn(total.shape, generator=generator)
    grad, = torch.autograd.grad((total * weight).sum(), value)
    assert grad.equal(weight[block_of(query_ptr)])


def test_joined_pointers():
    assert join_ptrs([ptr(0, 2, 2), ptr(0), ptr(0, 0, 3)], [2, 0, 3]).tolist() == [0, 2, 2, 2, 5]
    one = ptr(0, 2)
    joined = join_ptrs([one], [2])
    assert joined.tolist() == [0, 2] and joined.data_ptr() != one.data_ptr()
