"""Segments: which queries and keys belong together."""

from itertools import accumulate, pairwise

import pytest
import torch

from graphattn.graphs.segments import Segments, segment_of, sum_segments
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
every_segments = pytest.mark.parametrize('query_ptr, key_ptr', BLOCKS.values(), ids=BLOCKS)


@pytest.mark.parametrize('lengths, num_runs', [([], 0), ([3], 1), ([3, 3, 2, 2, 3], 3)])
def test_segments_of_a_shape_in_a_row_are_a_run(lengths, num_runs):
    ends = ptr(0, *accumulate(lengths))
    assert Segments(ends, ends).num_runs == num_runs


@every_segments
def test_sizes_follow_from_the_pointers(query_ptr, key_ptr):
    segments = Segments(query_ptr, key_ptr)
    queries, keys = query_ptr.diff().tolist(), key_ptr.diff().tolist()
    pairs = [num_queries * num_keys for num_queries, num_keys in zip(queries, keys)]
    assert len(segments) == len(pairs)
    assert segments.pairs_per_segment().tolist() == pairs and segments.num_pairs == sum(pairs)
    assert segments.is_square == (queries == keys)
    assert segments.shapes == list(zip(queries, keys))
    for segment, sizes in ((segments.of_queries(), queries), (segments.of_keys(), keys)):
        assert segment.tolist() == [b for b, size in enumerate(sizes) for _ in range(size)]


def test_equality():
    segments = Segments(ptr(0, 2, 5), ptr(0, 3, 5))
    assert segments == Segments(ptr(0, 2, 5), ptr(0, 3, 5))
    assert segments != Segments(ptr(0, 2, 5), ptr(0, 2, 5)) and segments != Segments(ptr(0, 5),
                                                                                     ptr(0, 5))
    assert segments != 'segments'
    with pytest.raises(TypeError, match='unhashable'):
        hash(segments)


@pytest.mark.parametrize('query_ptr, key_ptr, sizes, heads, expected', [
    (None, None, (4, 4), 1, ([0, 4], [0, 4])),
    (None, None, (4, 6), 1, ([0, 4], [0, 6])),
    (None, None, (4, 6), 2, ([0, 2, 4], [0, 3, 6])),
    (ptr(0, 1, 4), None, (4, 4), 1, ([0, 1, 4], [0, 1, 4])),
    (ptr(0, 4), None, (4, 6), 1, ([0, 4], [0, 6])),
    (ptr(0, 1, 4), ptr(0, 6, 6), (4, 6), 1, ([0, 1, 4], [0, 6, 6])),
    (None, None, (0, 0), 3, ([0, 0, 0, 0], [0, 0, 0, 0])),
])
def test_default_pointers(query_ptr, key_ptr, sizes, heads, expected):
    segments = Segments.of(query_ptr, key_ptr, sizes, torch.device('cpu'), heads=heads)
    assert (segments.query_ptr.tolist(), segments.key_ptr.tolist()) == expected
    assert repr(segments) == f'Segments({expected[0]}, {expected[1]})'


# Pointers ############################################################################


@pytest.mark.parametrize('name', GRAPHS)
def test_sums_of_segments(name):
    query_ptr = GRAPHS[name]().query_ptr
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(int(query_ptr[-1]), 3, generator=generator, requires_grad=True)
    expected = [value[begin:end].double().sum(0) for begin, end in pairwise(query_ptr.tolist())]
    expected = torch.stack(expected) if expected else torch.empty(0, 3, dtype=torch.double)
    total = sum_segments(value, query_ptr)
    torch.testing.assert_close(total, expected)
    weight = torch.randn(total.shape, generator=generator)
    grad, = torch.autograd.grad((total * weight).sum(), value)
    assert grad.equal(weight[segment_of(query_ptr)])
