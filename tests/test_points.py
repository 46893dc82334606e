"""Graphs of points, beside all distances."""

import pytest
import torch

from graphattn import BipartiteGraph


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)


@pytest.mark.parametrize('sizes', [[7], [5, 1, 6], [4, 0, 3]])
@pytest.mark.parametrize('dimensions', [1, 2, 3])
def test_keys_are_those_within_the_radius(sizes, dimensions):
    points, ptr = draw(sum(sizes), dimensions), torch.tensor([0, *sizes]).cumsum(0)
    graph = BipartiteGraph.from_radius(points, 1., query_ptr=ptr).validate()
    example = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    expected = (torch.cdist(points, points) <= 1) & (example[:, None] == example)
    assert torch.equal(graph.to_mask(), expected) and graph.num_segments == len(sizes)


@pytest.mark.parametrize('k', [1, 3])
def test_keys_are_the_nearest(k):
    query, key = draw(6, 2), draw(9, 2) + .1
    query_ptr, key_ptr = torch.tensor([0, 2, 2, 6]), torch.tensor([0, 4, 4, 9])
    graph = BipartiteGraph.from_nearest(query, k, key, query_ptr=query_ptr, key_ptr=key_ptr)
    for own, others, part in zip(query.tensor_split([2, 2]), key.tensor_split([4, 4]),
                                 graph.unbatch()):
        expected = torch.zeros(len(own), len(others), dtype=torch.bool)
        if len(own) > 0:
            nearest = torch.cdist(own, others).topk(k, largest=False).indices
            expected.scatter_(1, nearest, True)
        assert torch.equal(part.to_mask(), expected)


def test_coincident_points_have_as_many_keys_as_others():
    """And each is among its own."""
    graph = BipartiteGraph.from_nearest(torch.zeros(5, 3), 2)
    assert graph.in_degree().tolist() == [2] * 5
    assert graph.without_self_loops().in_degree().tolist() == [1] * 5


def test_points_may_be_none():
    assert BipartiteGraph.from_nearest(torch.zeros(0, 2), 3).num_edges == 0
    nothing, keys = torch.zeros(0, 2), torch.zeros(2, 2)
    assert BipartiteGraph.from_radius(keys, 1, nothing).num_edges == 0
    assert BipartiteGraph.from_radius(torch.zeros(0, 2), 1, torch.zeros(2, 2)).num_keys == 2


X = torch.zeros(4, 2)


@pytest.mark.parametrize(('options', 'match'), [
    (dict(query=X, k=5), "'k' .*got 5, but example 0 has 4 keys"),
    (dict(query=X, k=2, query_ptr=torch.tensor([0, 3, 4])), "example 1 has 1 keys"),
    (dict(query=X / 0, k=1), "'query' must have finite .* at point 0"),
    (dict(query=X, key=X * float('nan'), k=1), "'key' must have finite"),
    (dict(query=X, key=torch.zeros(4, 3), k=1), "'key' must have 2 columns.*got 3"),
    (dict(query=X, key=torch.zeros(4, 3), radius=1.), "'key' must have 2 columns.*got 3"),
])
def test_what_is_refused(options, match):
    build = BipartiteGraph.from_nearest if 'k' in options else BipartiteGraph.from_radius
    with pytest.raises(ValueError, match=match):
        build(**options)
