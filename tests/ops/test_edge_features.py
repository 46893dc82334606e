"""Features on edges in every backend, and fewer heads of keys than of queries."""

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.functional import attention_weights, edge_attention, edge_feature_attention
from tests.graphs import GRAPHS
from tests.ops.test_backends import BACKENDS, DENSE, ON_CPUS, skip_if_missing
from tests.pairwise import pairwise

HEADS, CHANNELS = 4, 5


def draw(graph: BipartiteGraph, num_kv_heads: int, size: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {'query': (graph.num_queries, HEADS, CHANNELS),
              'key': (graph.num_keys, num_kv_heads, CHANNELS),
              'value': (graph.num_keys, num_kv_heads, CHANNELS),
              'edge_attr': (graph.num_edges, size), 'projection': (HEADS, CHANNELS, size)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.double).requires_grad_()
            for name, shape in shapes.items()}


def by_definition(graph: BipartiteGraph, query: Tensor, key: Tensor, value: Tensor,
                  edge_attr: Tensor, projection: Tensor, scale: float) -> Tensor:
    """The formula, edges x channels numbers and all."""
    key, value = (x.repeat_interleave(HEADS // x.size(1), 1)[graph.key] for x in (key, value))
    projected = torch.einsum('es,hcs->ehc', edge_attr, projection)
    logit = scale * (query[graph.query] * (key + projected)).sum(-1)
    dense = logit.new_full((graph.num_queries, graph.num_keys, HEADS), -torch.inf)
    at = graph.query, graph.key
    weight = dense.index_put(at, logit).softmax(1)[at]
    return torch.zeros_like(query).index_add(0, graph.query, weight[..., None]
                                             * (value + projected))


def with_grads(out: Tensor, inputs: dict[str, Tensor]) -> list[Tensor]:
    return [out, *torch.autograd.grad(out.sin().sum(), list(inputs.values()))]


@pytest.mark.parametrize('backend, name, num_kv_heads', pairwise(
    ['auto', *BACKENDS], GRAPHS, [HEADS, 2]))
def test_features_are_added_to_keys_and_values(backend, name, num_kv_heads):
    graph = GRAPHS[name]()
    inputs = draw(graph, num_kv_heads)
    out = edge_feature_attention(graph=graph, **inputs, scale=0.3,
                                 backend=skip_if_missing(backend))
    expected = by_definition(graph, **inputs, scale=0.3)
    torch.testing.assert_close(with_grads(out, inputs), with_grads(expected, inputs))


@pytest.mark.parametrize('size', [0, 1, 16, 40])
@pytest.mark.parametrize('backend', ['auto'])
def test_features_of_any_size(backend, size):
    graph = GRAPHS['more_keys']()
    inputs = draw(graph, HEADS, size)
    out = edge_feature_attention(graph=graph, **inputs, scale=0.3, backend=backend)
    torch.testing.assert_close(with_grads(out, inputs),
                               with_grads(by_definition(graph, **inputs, scale=0.3), inputs))


@pytest.mark.parametrize('backend, name, hops, num_kv_heads', pairwise(
    ['auto', *ON_CPUS], ['square', 'ragged_batch', 'full', 'more_keys'], [1, 2], [1, 2],
    among=lambda backend, name, hops, _: hops == 1 or not (
        backend in DENSE or name == 'more_keys')))
def test_a_head_of_keys_serves_several_of_queries(backend, name, hops, num_kv_heads):
    graph = GRAPHS[name]()
    inputs = {part: draw(graph, num_kv_heads)[part] for part in ('query', 'key', 'value')}
    options = dict(graph=graph, hops=hops, backend=skip_if_missing(backend))
    repeated = {part: x.repeat_interleave(HEADS // x.size(1), 1) for part, x in inputs.items()}
    torch.testing.assert_close(
        with_grads(edge_attention(**inputs, **options), inputs),
        with_grads(edge_attention(**repeated, graph=graph, hops=hops, backend='reference'),
                   inputs))
    if backend not in DENSE:
        torch.testing.assert_close(
            attention_weights(inputs['query'], inputs['key'], graph, backend=backend),
            attention_weights(repeated['query'], repeated['key'], graph, backend='reference'))


@pytest.mark.parametrize('heads', [(3, 3), (0, 0), (2, 4)])
def test_heads_that_do_not_divide_are_refused(heads):
    graph = GRAPHS['square']()
    key, value = (torch.randn(graph.num_keys, count, CHANNELS) for count in heads)
    with pytest.raises(ValueError, match="'(key|value)' must have"):
        edge_attention(torch.randn(graph.num_queries, 4, CHANNELS), key, value, graph)


def test_dropout_of_features_has_the_gradient_of_what_was_drawn():
    graph = GRAPHS['square']()
    inputs = draw(graph, HEADS)

    def attend(*tensors: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return edge_feature_attention(*tensors[:3], graph, *tensors[3:], dropout_p=0.4,
                                          backend='numba')

    assert torch.autograd.gradcheck(attend, tuple(inputs.values()), fast_mode=True)
