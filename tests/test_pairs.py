"""Edges as numbers, and the order by key."""

import pytest
import torch

import graphattn.graphs.pairs
from graphattn.graphs.pairs import csc_of_rows
from tests.graphs import GRAPHS


def long(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.long)


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
