"""Masks over hop distances."""

from __future__ import annotations

import pickle

import networkx as nx
import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.layers import GraphAttention
from graphattn.sources import HopMaskSource
from graphattn.sources.gumbel_sigmoid import draw_values
from graphattn.sources.hop_mask import pairs_within

PTR = torch.tensor([0, 5, 5, 12])


def edge_index(seed: int = 0, directed: bool = False) -> torch.Tensor:
    """Random edges within the two graphs."""
    edges = []
    for first, size in ((0, 5), (5, 7)):
        graph = nx.gnp_random_graph(size, .3, seed=seed + size, directed=directed)
        both = graph if directed else graph.to_directed()
        edges += [[first + source, first + target] for source, target in both.edges]
    return torch.tensor(edges).T


def of_data(edges: torch.Tensor) -> BipartiteGraph:
    return BipartiteGraph.from_edge_index(edges, 12)


@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('max_hops', [1, 2, 3, 20])
def test_distances_are_those_of_networkx(max_hops, directed):
    edges = edge_index(directed=directed)
    graph = nx.DiGraph(edges.T.tolist())
    graph.add_nodes_from(range(12))
    expected = {(target, source, hops)
                for source, reached in nx.all_pairs_shortest_path_length(graph, max_hops)
                for target, hops in reached.items()}
    assert {*zip(*(each.tolist() for each in pairs_within(of_data(edges), max_hops)))} == expected


@pytest.mark.parametrize('is_training', [False, True])
def test_a_head_attends_at_the_distances_that_are_on(is_training):
    source, edges = HopMaskSource(2, 3).train(is_training), edge_index()
    with torch.no_grad():
        source.logit.copy_(torch.tensor([[50., -50., 50.], [-50., 50., -50.]]))
    tokens = torch.randn(12, 2, 4)
    graph = (source | edges)(tokens, tokens, PTR)
    query, key, hops = pairs_within(of_data(edges), 3)
    for head, wanted in enumerate(([0, 1, 3], [0, 2])):
        own = torch.isin(hops, torch.tensor(wanted))
        mask = graph.to_mask()[12 * head:12 * (head + 1), 12 * head:12 * (head + 1)]
        expected = torch.zeros(12, 12, dtype=torch.bool).index_put((query[own], key[own]),
                                                                    torch.tensor(True))
        assert torch.equal(mask, expected)
    assert (graph.edge_bias is not None) == is_training
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_the_gradient_is_that_of_a_bias_on_dense_logits():
    torch.manual_seed(0)
    edges, x = edge_index(), torch.randn(12, 8, dtype=torch.double)
    source = HopMaskSource(2, 3, logit_drop=2.).double()
    layer = GraphAttention(8, 2).double()
    weight = torch.randn(12, 8, dtype=torch.double)
    seed = torch.Generator().manual_seed
    (layer(x, PTR, source=source | edges, generator=seed(1)) * weight).sum().backward()
    values = draw_values(source.logit, 1., seed(1))
    query, key, hops = pairs_within(of_data(edges), 3)
    q, k, v = (linear(x).view(12, 2, 4) for linear in (layer.lin_query, layer.lin_key,
                                                       layer.lin_value))
    bias = torch.cat([torch.zeros(2, 1, dtype=torch.double), 2. * (values - 1)], dim=1)[:, hops]
    is_on = torch.cat([torch.ones(2, 1), values.detach()], dim=1)[:, hops] > 0
    logit = torch.full((2, 12, 12), -torch.inf, dtype=torch.double)
    score = (q[query] * k[key]).sum(-1).T / 2 + bias
    for head in range(2):
        own = is_on[head]
        logit = logit.index_put((torch.tensor(head), query[own], key[own]), score[head][own])
    out = torch.einsum('hij,jhc->ihc', logit.softmax(-1), v).flatten(1)
    expected, = torch.autograd.grad((layer.lin_out(out) * weight).sum(), source.logit)
    torch.testing.assert_close(source.logit.grad, expected)


def test_bad_arguments_are_refused():
    tokens = torch.randn(12, 2, 4)
    with pytest.raises(ValueError, match=r"'edges' must.*source \| edge_index"):
        HopMaskSource(2)(tokens, tokens, PTR)
    for edges, words in (([[0], [12]], 'from 0 to 11|12'), ([[0], [5]], 'segments')):
        with pytest.raises(ValueError, match=words):
            (HopMaskSource(2) | torch.tensor(edges))(tokens, tokens, PTR)
    for options in (dict(heads=0), dict(heads=2, max_hops=0), dict(heads=2, temperature=0.)):
        with pytest.raises(ValueError, match=f"'{[*options][-1]}'"):
            HopMaskSource(**options)
