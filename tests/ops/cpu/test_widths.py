"""Heads of every width, with rows that end inside a vector."""

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.functional import attention_diffusion, edge_attention, edge_feature_attention
from graphattn.patterns import RandomKeys

WIDTHS = (1, 3, 8, 12, 15, 16, 17, 24, 31, 33, 47, 49, 66)
DIVERGENT = 11  # a node that no other node attends to


def graph(edges_of_a_row: int) -> BipartiteGraph:
    """Short rows take the kernel of few edges, long ones the chunks."""
    drawn = RandomKeys(edges_of_a_row).build(40, seed=1)
    query, key = drawn.query, drawn.key
    is_kept = (key != DIVERGENT) & (query != DIVERGENT)
    return BipartiteGraph.from_edge_index(torch.stack([key, query])[:, is_kept], 40)


def attention(query: Tensor, key: Tensor, value: Tensor, along: BipartiteGraph,
              backend: str) -> Tensor:
    return edge_attention(query, key, value, along, backend=backend)


def hops(query: Tensor, key: Tensor, value: Tensor, along: BipartiteGraph, backend: str) -> Tensor:
    return edge_attention(query, key, value, along, hops=3, teleport=.2, backend=backend)


def weights(query: Tensor, key: Tensor, value: Tensor, along: BipartiteGraph,
            backend: str) -> Tensor:
    weight = edge_attention(query, key, value, along, return_attention_weights=True,
                            backend='gather')[1]
    return attention_diffusion(weight, value, along, hops=2, teleport=.1, backend=backend)


def features(query: Tensor, key: Tensor, value: Tensor, along: BipartiteGraph,
             backend: str) -> Tensor:
    made = torch.Generator().manual_seed(3)
    width = query.size(2)
    edge_attr = torch.randn(along.num_edges, width, generator=made).to(query.dtype)
    projection = torch.randn(query.size(1), width, width, generator=made).to(query.dtype) / width
    return edge_feature_attention(query, key, value, along, edge_attr, projection,
                                  backend=backend)


@pytest.mark.parametrize('edges_of_a_row', [3, 21])
@pytest.mark.parametrize('operation', [attention, hops, weights, features])
@pytest.mark.parametrize('width', WIDTHS)
def test_every_width_has_the_numbers_of_the_reference(width, operation, edges_of_a_row):
    along = graph(edges_of_a_row)
    tokens = torch.randn(3, 40, 2, width, generator=torch.Generator().manual_seed(0))
    results = []
    for backend, dtype in (('gather', torch.double), ('numba', torch.float)):
        own = [part.to(dtype).requires_grad_() for part in tokens]
        out = operation(*own, along, backend)
        slope = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
        results.append([out, *torch.autograd.grad((out * slope).sum(), own)])
    for expected, got in zip(*results):
        torch.testing.assert_close(got.double(), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize('operation', [attention, hops, features])
@pytest.mark.parametrize('width', WIDTHS)
def test_the_row_behind_in_memory_reaches_nothing(width, operation):
    along = graph(21)
    tokens = torch.randn(3, 40, 2, width)
    tokens[:, DIVERGENT] = torch.nan
    own = [part.clone().requires_grad_() for part in tokens]
    out = operation(*own, along, 'numba')
    others = torch.arange(40) != DIVERGENT
    grads = torch.autograd.grad(out[others].sum(), own)
    assert all(part[others].isfinite().all() for part in (out, *grads))
