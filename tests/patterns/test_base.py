"""Lengths, seeds, operators and reprs that all patterns inherit."""

from dataclasses import dataclass

import pytest
import torch

from graphattn.patterns import (
    Causal,
    Full,
    GlobalTokens,
    LogSparse,
    OverlappingBlocks,
    Pattern,
    RandomKeys,
    SlidingWindow,
    Star,
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


@pytest.mark.slow
def test_intersection_with_causal_never_lists_the_dense_part():
    num_tokens = 200_000  # dense, these would be 20 billion pairs
    graph = (OverlappingBlocks(4) & (Causal() | SlidingWindow(0))).build(num_tokens)
    assert bool((graph.key <= graph.query).all())
    assert graph.in_degree().unique().tolist() == [1, 2, 3, 4]


def test_a_pattern_without_rows_of_its_own_has_those_of_its_edges():
    @dataclass(frozen=True, repr=False)
    class Mirrored(Pattern):
        def edges(self, num_queries, num_keys, generator):
            query = torch.arange(num_queries)
            return torch.stack([num_keys - 1 - query, query])

    whole = (Mirrored() | SlidingWindow(1)) - GlobalTokens((2,))
    rows = whole.build(3, 8, offset=4).to_mask()
    assert torch.equal(rows, whole.build(8).to_mask()[4:7])
