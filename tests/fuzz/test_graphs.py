"""Graphs as values against plain sets of pairs."""

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphattn import BipartiteGraph
from tests.fuzz.budget import cases
from tests.fuzz.strategies import SEEDS, GraphCase, graph_cases

Pairs = set[tuple[int, int]]  # of query and key


def pairs_of(graph: BipartiteGraph) -> Pairs:
    pairs = list(zip(graph.query.tolist(), graph.key.tolist()))
    assert pairs == sorted(set(pairs))  # by query, then by key, each once
    return set(pairs)


def pairs_of_case(case: GraphCase) -> Pairs:
    return {(query, key) for key, query in case.shuffled().t().tolist()}


def edge_index(pairs: Pairs) -> torch.Tensor:
    return torch.tensor(sorted(pairs), dtype=torch.long).reshape(-1, 2).t().flip(0)


@cases(25)
@given(case=graph_cases())
def test_edges_in_any_order_are_a_set(case):
    graph, pairs = case.build().validate(), pairs_of_case(case)
    assert pairs_of(graph) == pairs
    assert graph.num_edges == len(pairs)
    assert (graph.num_queries, graph.num_keys, graph.num_pairs, graph.num_segments) == (
        case.num_queries, case.num_keys, case.num_pairs, len(case.sizes))
    assert graph.in_degree().tolist() == [
        sum(query == i for query, _ in pairs) for i in range(case.num_queries)]
    assert graph.out_degree().tolist() == [
        sum(key == j for _, key in pairs) for j in range(case.num_keys)]
    assert graph.is_square == all(n == m for n, m in case.sizes)
    assert graph.density() == len(pairs) / max(case.num_pairs, 1)
    indptr, query, perm = graph.csc
    assert [(int(query[e]), key) for key in range(case.num_keys)
            for e in range(indptr[key], indptr[key + 1])] == sorted(pairs, key=lambda p: p[::-1])
    assert graph.key[perm.long()].tolist() == sorted(graph.key.tolist())


@cases(25)
@given(case=graph_cases(), seed=SEEDS, density=st.sampled_from([0., 0.3, 1.]))
def test_set_algebra(case, seed, density):
    other = replace(case, seed=seed, density=density)
    ours, theirs = case.build(), other.build()
    a, b = pairs_of_case(case), pairs_of_case(other)
    for graph, pairs in ((ours | theirs, a | b), (ours & theirs, a & b), (ours - theirs, a - b)):
        assert pairs_of(graph.validate()) == pairs
        assert graph.num_segments == len(case.sizes)
    assert ours.isin(theirs).tolist() == [pair in b for pair in sorted(a)]
    assert (ours == theirs) == (a == b)


@cases(25)
@given(case=graph_cases())
def test_conversions_there_and_back(case):
    pairs = pairs_of_case(case)
    n, m = case.num_queries, case.num_keys
    graph = BipartiteGraph(edge_index(pairs), n, m)
    mask = np.zeros((n, m), dtype=bool)
    for pair in pairs:
        mask[pair] = True
    assert np.array_equal(graph.to_mask().numpy(), mask)
    assert np.array_equal(graph.to_scipy().toarray(), mask)
    assert graph.edge_index.as_tensor().equal(edge_index(pairs))
    assert set(graph.to_networkx(bipartite=True).edges) == {
        (('key', key), ('query', query)) for query, key in pairs}
    matrix = sp.coo_array(mask.astype(float))
    back = [BipartiteGraph.from_mask(torch.from_numpy(mask)),
            *(BipartiteGraph.from_scipy(form(matrix)) for form in (
                sp.coo_array, sp.csr_array, sp.csc_array, sp.csr_matrix)),
            BipartiteGraph.from_networkx(graph.to_networkx(bipartite=True)),
            BipartiteGraph.from_csr(*graph.csr, m),
            BipartiteGraph.from_edge_index(graph.edge_index, n, m)]
    assert all(each == graph for each in back)


@cases(20)
@given(case=graph_cases(), seed=SEEDS)
def test_values_follow_their_edges(case, seed):
    """``edge_prob`` and the permutation that is returned, for edges in any order."""
    generator = np.random.default_rng(seed)
    given_order = edge_index(pairs_of_case(case)).numpy()[:, generator.permutation(
        len(pairs_of_case(case)))]
    query_ptr, key_ptr = case.ptrs()
    prob = torch.from_numpy(generator.random(given_order.shape[1]))
    graph, perm = BipartiteGraph.from_edge_index(
        torch.from_numpy(given_order.copy()), case.num_queries, case.num_keys, edge_prob=prob,
        query_ptr=query_ptr, key_ptr=key_ptr, return_perm=True)
    of_pair = {(query, key): value for (key, query), value in zip(given_order.T.tolist(),
                                                                  prob.tolist())}
    edges = list(zip(graph.query.tolist(), graph.key.tolist()))
    assert graph.edge_prob.tolist() == [of_pair[edge] for edge in edges]
    assert torch.from_numpy(given_order.copy())[:, perm].equal(graph.edge_index.as_tensor())
    turned = graph.transpose()
    assert turned.edge_prob.tolist() == [
        of_pair[key, query] for query, key in zip(turned.query.tolist(), turned.key.tolist())]
