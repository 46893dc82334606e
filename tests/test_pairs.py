"""Edges as numbers, and the order by key."""

from __future__ import annotations

import pytest
import torch

import graphattn.graphs.pairs
from graphattn.graphs.pairs import (
    csc_of_rows,
    find_pairs,
    is_ascending,
    number_pairs,
    rows_of_pairs,
    sort_pairs,
)
from tests.graphs import GRAPHS

LISTS = {
    'empty': [],
    'one': [3],
    'ascending': [0, 3, 7],
    'descending': [7, 3, 0],
    'repeated': [3, 3, 7],
    'repeated and mixed': [7, 3, 7, 0, 3],
    'large': [2**63 - 1, 0, 2**62],
}
every_list = pytest.mark.parametrize('pairs', LISTS.values(), ids=LISTS)


def long(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.long)


@every_list
def test_sorted_pairs_are_a_set(pairs):
    given = long(pairs)
    done = sort_pairs(given)
    assert done.tolist() == sorted(set(pairs)) and is_ascending(done)
    assert given.tolist() == pairs  # which is left alone
    assert is_ascending(given) == (pairs == sorted(set(pairs)))


@every_list
@pytest.mark.parametrize('others', [[], [3], [0, 1, 7, 9], [2**63 - 1]])
def test_pairs_are_found(pairs, others):
    assert find_pairs(long(pairs), long(others)).tolist() == [pair in others for pair in pairs]


@pytest.mark.parametrize('name', GRAPHS)
def test_numbers_of_pairs_lead_back_to_rows(name):
    graph = GRAPHS[name]()
    pair = number_pairs(graph.key, graph.query, graph.num_keys)
    assert pair.equal(graph.to_mask().flatten().nonzero().flatten()) and is_ascending(pair)
    indptr, key = rows_of_pairs(pair, graph.num_queries, graph.num_keys)
    assert indptr.equal(graph.indptr) and key.equal(graph.key)


# The order by key ####################################################################


@pytest.mark.parametrize('name', GRAPHS)
@pytest.mark.parametrize('dtype', [torch.uint16, torch.int32, torch.int64])
def test_order_by_key_of_keys_of_every_width(name, dtype):
    graph = GRAPHS[name]()
    parts = csc_of_rows(graph.indptr, graph.key.to(dtype), graph.num_keys)
    for part, expected in zip(parts, graph.csc):
        assert part.dtype == expected.dtype and part.equal(expected)


@pytest.mark.parametrize('compiled', [False, True])
@pytest.mark.parametrize('name', GRAPHS)
def test_set_operations_are_those_of_masks(name, compiled, monkeypatch):
    monkeypatch.setattr(graphattn.graphs.pairs, '_EDGES_WORTH_COMPILING',
                        0 if compiled else 2**62)
    one = GRAPHS[name]()
    keep = torch.rand(one.num_edges, generator=torch.Generator().manual_seed(0)) < .5
    some, rest = one.select_edges(keep), one.select_edges(~keep)
    for left, right in ((one, some), (some, one), (some, rest), (rest, rest)):
        masks = left.to_mask(), right.to_mask()
        assert torch.equal((left | right).to_mask(), masks[0] | masks[1])
        assert torch.equal((left & right).to_mask(), masks[0] & masks[1])
        assert torch.equal((left - right).to_mask(), masks[0] & ~masks[1])
        assert left | right == right | left and (left | right).segments == left.segments
    assert torch.equal(one.isin(some), keep)
