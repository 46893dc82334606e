"""Both ways of EdgeAttention are one operator, and PyG's tools find what they look for."""

import math
from functools import wraps

import pytest
import torch

from graphattn import BipartiteGraph, functional
from graphattn.layers import EdgeAttention
from tests.graphs import GRAPHS, random_graph
from tests.ops.numbers import saved_bytes


def draw_inputs(graph, heads=2, dtype=torch.double):
    generator = torch.Generator().manual_seed(1)
    sizes = [(graph.num_queries, 4), (graph.num_keys, 4), (graph.num_keys, 3)]
    query, key, value = (torch.randn(nodes, heads, channels, dtype=dtype, generator=generator)
                         .requires_grad_() for nodes, channels in sizes)
    bias, gate = (torch.randn(graph.num_edges, heads, dtype=dtype, generator=generator)
                  .requires_grad_() for _ in range(2))
    return query, key, value, bias, gate


SQUARE = [name for name in GRAPHS
          if torch.equal(GRAPHS[name]().query_ptr, GRAPHS[name]().key_ptr)]


@pytest.mark.parametrize('name, hops, teleport', [
    *((name, 1, 0.) for name in GRAPHS),
    *(pytest.param(name, *hops, marks=pytest.mark.slow) for name in SQUARE for hops in (
        (3, 0.1), (1, 0.2), (2, (0.5, 0.)), (math.inf, 0.3)))])
def test_explicit_and_fused_way_agree(name, hops, teleport):
    graph = GRAPHS[name]()
    query, key, value, bias, gate = inputs = draw_inputs(graph)
    attention = EdgeAttention(hops=hops, teleport=teleport)
    fused = attention(query, key, value, graph, edge_bias=bias, edge_gate=gate)
    explicit, (edge_index, alpha) = attention(query, key, value, graph, edge_bias=bias,
                                              edge_gate=gate, return_attention_weights=True)
    torch.testing.assert_close(fused, explicit)
    assert torch.equal(edge_index, graph.edge_index.as_tensor())
    assert alpha.shape == (graph.num_edges, 2)
    for fused_grad, explicit_grad in zip(torch.autograd.grad(fused.sin().sum(), inputs),
                                         torch.autograd.grad(explicit.sin().sum(), inputs)):
        torch.testing.assert_close(fused_grad, explicit_grad)
    if (hops, teleport) != (1, 0.):
        torch.testing.assert_close(explicit, functional.attention_diffusion(
            alpha, value, graph, hops=hops, teleport=teleport, backend='reference'))


def test_takes_the_fused_way_unless_messages_are_watched(monkeypatch):
    graph = GRAPHS['square']()
    query, key, value, *_ = draw_inputs(graph)
    calls = []
    fused = EdgeAttention.message_and_aggregate
    counted = wraps(fused)(lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs))
    monkeypatch.setattr(EdgeAttention, 'message_and_aggregate', counted)
    attention = EdgeAttention()
    attention(query, key, value, graph)
    assert len(calls) == 1
    attention(query, key, value, graph.edge_index)
    attention(query, key, value, graph.edge_index.as_tensor())
    assert len(calls) == 3
    hook = attention.register_message_forward_hook(lambda *_: None)
    attention(query, key, value, graph)
    attention(query, key, value, graph, return_attention_weights=False)  # with weights, as PyG's
    assert len(calls) == 3
    hook.remove()
    attention(query, key, value, graph)
    assert len(calls) == 4


@pytest.mark.parametrize('name, options', [('more_keys', {}),
                                           ('square', dict(hops=3, teleport=0.2))])
def test_edges_in_any_order(name, options):
    graph = GRAPHS[name]()
    query, key, value, bias, gate = draw_inputs(graph)
    attention = EdgeAttention(**options)
    order = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(0))
    shuffled = graph.edge_index.as_tensor()[:, order]
    expected = attention(query, key, value, graph, edge_bias=bias, edge_gate=gate)
    for explicit in (False, True):
        out = attention(query, key, value, shuffled, edge_bias=bias[order], edge_gate=gate[order],
                        return_attention_weights=explicit or None)
        torch.testing.assert_close(out[0] if explicit else out, expected)


def test_messages_in_another_order_than_that_of_the_edges_are_refused():
    attention, edges = EdgeAttention(), torch.tensor([[5, 0, 1], [0, 0, 0]])
    attention.register_message_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="'graph' must have its edges in the order"):
        attention(*torch.randn(3, 6, 1, 2), BipartiteGraph.from_edge_index(edges, 6))


def test_recomputed_hops_only_keep_query_key_and_value():
    graph = random_graph(60, 60, 0.2)
    query, key, value = draw_inputs(graph)[:3]
    attention = EdgeAttention(0.4, hops=2, teleport=0.1, recompute=True)
    assert saved_bytes(lambda: attention(query, key, value, graph)) == sum(
        x.nbytes for x in (query, key, value))


def test_values_of_other_edges_are_refused():
    query, edges = torch.randn(3, 1, 2), torch.tensor([[0, 1, 2], [0, 2, 0]])
    for size in (2, 4):
        with pytest.raises(ValueError, match="'edge_bias' must.*3"):
            EdgeAttention()(query, query, query, edges, edge_bias=torch.zeros(size))


@pytest.mark.parametrize('explicit', [False, True])
@pytest.mark.parametrize('edges, error, match', [
    (torch.tensor([[0, 1, 0], [0, 2, 0]]), ValueError, 'each edge only once.*3 edges, 2 of them'),
    (torch.tensor([[0, 3], [0, 0]]), ValueError, ''), (torch.zeros(3, 2).long(), ValueError, ''),
    (torch.zeros(2, 2), TypeError, '')])
def test_edges_that_are_wrong_are_blamed_on_the_graph(edges, error, match, explicit):
    query = torch.randn(3, 1, 2)
    with pytest.raises(error, match=rf"^'graph(\[0\])?' must.*{match}"):
        EdgeAttention()(query, query, query, edges, return_attention_weights=explicit or None)


@pytest.mark.parametrize('explicit', [False, True])
def test_wrong_sizes_are_refused_on_both_ways(explicit):
    graph = BipartiteGraph.from_mask(torch.ones(3, 4, dtype=torch.bool))
    tokens = torch.randn(3, 2, 4)
    with pytest.raises(ValueError, match="'key' must.*\\[4, heads"):
        EdgeAttention()(tokens, tokens, tokens, graph, return_attention_weights=explicit or None)


# Several hops ########################################################################


@pytest.mark.parametrize('name', GRAPHS)
def test_one_hop_without_teleport_is_attention_bit_for_bit(name):
    graph = GRAPHS[name]()
    query, key, value, bias, gate = draw_inputs(graph)
    out = EdgeAttention(hops=1, teleport=0.)(query, key, value, graph, edge_bias=bias,
                                             edge_gate=gate)
    assert torch.equal(out, functional.edge_attention(query, key, value, graph, edge_bias=bias,
                                                      edge_gate=gate))


@pytest.mark.parametrize('explicit', [False, True])
@pytest.mark.parametrize('hops, teleport', [(1, 0.), (5, 0.1)])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.half])
def test_half_precision_accumulates_in_float32(dtype, hops, teleport, explicit):
    graph = GRAPHS['square']()
    query, key, value, *_ = draw_inputs(graph, dtype=torch.float)
    attention = EdgeAttention(hops=hops, teleport=teleport)
    half = [x.to(dtype) for x in (query, key, value)]
    exact = attention(*(x.float() for x in half), graph)
    out = attention(*half, graph, return_attention_weights=explicit or None)
    out = out[0] if explicit else out
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), exact, atol=1e-5, rtol=torch.finfo(dtype).eps)
