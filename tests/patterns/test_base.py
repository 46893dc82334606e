"""Lengths, seeds, operators and reprs that all patterns inherit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from graphattn.patterns import (
    Causal,
    Cropped,
    Difference,
    Full,
    GlobalTokens,
    Intersection,
    LogSparse,
    OverlappingBlocks,
    Pattern,
    RandomKeys,
    RandomRegular,
    SlidingWindow,
    Star,
    Union,
    get,
)

A, B, C = SlidingWindow(1), GlobalTokens(1), Star()


@pytest.mark.parametrize(('pattern', 'expected'), [
    (SlidingWindow(3) | GlobalTokens(2), 'SlidingWindow(radius=3) | GlobalTokens(tokens=2)'),
    (SlidingWindow(3, causal=True, dilation=2),
     'SlidingWindow(radius=3, causal=True, dilation=2)'),
    (GlobalTokens((0, 5)), 'GlobalTokens(tokens=(0, 5))'),
    (RandomKeys(2, spacing='uniform'), "RandomKeys(count=2, spacing='uniform')"),
    (LogSparse(causal=False), 'LogSparse()'),
    (C | C | Full(), 'Star() | Star() | Full()'),
    (C | (C | Full()), 'Star() | (Star() | Full())'),
    (C - (C - Full()), 'Star() - (Star() - Full())'),
    (C | C & Full(), 'Star() | Star() & Full()'),
    ((C | C) & Full(), '(Star() | Star()) & Full()'),
    ((C & C) - Full(), '(Star() & Star()) - Full()'),
    (C & C - Full(), 'Star() & Star() - Full()'),
    (C & (C & Full()), 'Star() & (Star() & Full())'),
])
def test_repr(pattern, expected):
    assert repr(pattern) == expected
    assert eval(expected) == pattern


def test_crop_takes_the_first_queries_and_keys():
    pattern = RandomKeys(4)
    graph = pattern.build(9, 2, seed=0, crop=True)
    assert torch.equal(graph.to_mask(), pattern.build(9, 4, seed=0).to_mask()[:, :2])
    graph = pattern.build(2, 9, seed=0, crop=True)
    assert torch.equal(graph.to_mask(), pattern.build(4, 9, seed=0).to_mask()[:2])


def test_crop_is_of_the_whole_expression():
    pattern = (RandomKeys(4) | OverlappingBlocks(8)) - GlobalTokens((11,))
    assert pattern.min_tokens == 12
    expected = pattern.build(12, seed=0).to_mask()[:3, :3]
    assert torch.equal(pattern.build(3, seed=0, crop=True).to_mask(), expected)
    with pytest.raises(ValueError, match=r"'count' must.*3.*4\);.*first tokens.*graph.*12"):
        pattern.build(3, seed=0)


def test_crop_does_not_hide_errors_that_occur_at_every_length():
    for pattern, length in ((RandomRegular(2), (5, 6)), (Cropped(RandomKeys(9), 8), (3,))):
        for crop in (True, False):
            with pytest.raises(ValueError, match=r'\(got [^;]*$'):
                pattern.build(*length, seed=0, crop=crop)
    with pytest.raises(TypeError, match=r"'crop' must be a bool \(got int\)"):
        Full().build(4, crop=1)


def test_operators_build_the_named_patterns():
    assert (A | B, A & B, A - B) == (Union(A, B), Intersection(A, B), Difference(A, B))


@pytest.mark.parametrize('operate', [
    lambda: A | 1, lambda: A & None, lambda: A - 'b', lambda: 1 | A])
def test_operators_take_patterns_alone(operate):
    with pytest.raises(TypeError, match='unsupported operand'):
        operate()


def test_parts_of_one_expression_are_different_draws():
    count = 2
    union = (RandomKeys(count) | RandomKeys(count)).build(1000, seed=0)
    assert union.in_degree().double().mean() > 1.99 * count
    assert (RandomKeys(count) - RandomKeys(count)).build(1000, seed=0).num_edges > 0


@pytest.mark.slow
def test_intersection_with_causal_never_lists_the_dense_part():
    num_tokens = 200_000  # dense, these would be 20 billion pairs
    graph = (OverlappingBlocks(4) & (Causal() | SlidingWindow(0))).build(num_tokens)
    assert bool((graph.key <= graph.query).all())
    assert graph.in_degree().unique().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(('arguments', 'error', 'match'), [
    ((-1,), ValueError, r"'num_queries' must not be negative \(got -1\)"),
    ((2, -3), ValueError, r"'num_keys' must not be negative \(got -3\)"),
    ((2.0,), TypeError, r"'num_queries' must be an int \(got float\)"),
    ((2, True), TypeError, r"'num_keys' must be an int \(got bool\)"),
])
def test_bad_lengths(arguments, error, match):
    with pytest.raises(error, match=match):
        Full().build(*arguments)


@pytest.mark.parametrize(('seed', 'error', 'match'), [
    (1.5, TypeError, r"'seed' must be an int, a torch.Generator or None \(got float\)"),
    ('0', TypeError, r"'seed' must be .* \(got str\)"),
    (True, TypeError, r"'seed' must be .* \(got bool\)"),
    (2**64, ValueError, r"'seed' must.*64.*\(got 18446744073709551616\)"),
])
def test_bad_seeds(seed, error, match):
    for pattern in (RandomKeys(1), Full()):
        with pytest.raises(error, match=match):
            pattern.build(4, seed=seed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_a_generator_on_the_gpu_decides_too():
    first, second = (RandomKeys(2).build(50, seed=torch.Generator('cuda').manual_seed(0))
                     for _ in range(2))
    assert first == second


@pytest.mark.parametrize('operation', [Union, Intersection, Difference])
def test_set_operations_take_patterns_alone(operation):
    with pytest.raises(TypeError, match=r"'right' must be a Pattern \(got int\)"):
        operation(A, 1)
    with pytest.raises(TypeError, match=r"'left' must be a Pattern \(got str\)"):
        operation('A', B)


@dataclass(frozen=True, repr=False)
class Backwards(Pattern):
    """Query i attends to key n - i, which the first query does not have."""

    def edges(self, num_queries, num_keys, generator):
        query = torch.arange(num_queries)
        return torch.stack([num_keys - query, query])


def test_edges_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"must contain key numbers from 0 to 4 \(got 1 to 5\)"):
        Backwards().build(5)


def test_a_pattern_without_rows_of_its_own_has_those_of_its_edges():
    @dataclass(frozen=True, repr=False)
    class Mirrored(Pattern):
        def edges(self, num_queries, num_keys, generator):
            query = torch.arange(num_queries)
            return torch.stack([num_keys - 1 - query, query])

    whole = (Mirrored() | SlidingWindow(1)) - GlobalTokens((2,))
    rows = whole.build(3, 8, offset=4).to_mask()
    assert torch.equal(rows, whole.build(8).to_mask()[4:7])


@pytest.mark.parametrize('length, offset', [((3, 5), 3), ((3,), 1), ((6, 5), 0)])
def test_offset_leaves_room_for_the_queries(length, offset):
    with pytest.raises(ValueError, match=rf"'offset' .* \(got {offset} plus {length[0]}"):
        Full().build(*length, offset=offset)


def test_a_composite_is_random_if_a_part_is():
    assert (A | RandomKeys(1)).is_random and (RandomKeys(1) - A).is_random
    assert not (A | B & C).is_random
    assert get('diffuser').is_random
