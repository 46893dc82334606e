"""Hamiltonian paths against theorems, brute force, and a check of every step of every path."""

import json
import re
import sys
import time

import networkx as nx
import numpy as np
import pytest
import torch

from analysis import hamiltonian
from analysis.commands import COMMANDS
from analysis.graphs import as_graph
from analysis.hamiltonian import hamiltonian_path, rotate_and_extend, solve
from graphattn import BipartiteGraph
from graphattn.patterns import RandomKeys, SlidingWindow, Star

main = COMMANDS['hamiltonian']


def steps_are_edges(path, graph, directed=True):
    mask = as_graph(graph).to_mask().numpy()
    step = mask[path[1:], path[:-1]]
    if not directed:
        step |= mask[path[:-1], path[1:]]
    return sorted(path.tolist()) == list(range(len(mask))) and bool(step.all())


def answer(graph, directed=True, **options):
    """``exists``, after a check of the path that knows nothing of the module's own."""
    result = hamiltonian_path(graph, directed=directed, **options)
    assert (result.path is not None) == (result.exists is True)
    assert (result.reason is None) == (result.exists is True)
    assert result.path is None or steps_are_edges(result.path, graph, directed)
    return result.exists


def two_colours(*sizes):
    return nx.Graph(nx.complete_bipartite_graph(*sizes).edges)


def with_split_token(graph, token=0):
    """A path of this graph is a cycle of that one: ``token`` can only begin it, its twin end it."""
    split = nx.DiGraph(nx.convert_node_labels_to_integers(graph))
    twin = len(split)
    split.add_edges_from([(other, twin) for other in list(split.predecessors(token))])
    split.remove_edges_from(list(split.in_edges(token)))
    return split


def has_path(mask):
    """Decide by dynamic programming: ``ends[tokens]`` are those at which a path through them may
    end."""
    n = len(mask)
    follows = [sum(1 << i for i in range(n) if mask[i][j] and i != j) for j in range(n)]
    ends = [0] * (1 << n)
    for j in range(n):
        ends[1 << j] = 1 << j
    for tokens in range(1 << n):
        for j in range(n):
            if ends[tokens] >> j & 1:
                for i in range(n):
                    if follows[j] & ~tokens & 1 << i:
                        ends[tokens | 1 << i] |= 1 << i
    return ends[-1] != 0


@pytest.mark.slow
@pytest.mark.parametrize('graph, path, cycle', [
    (nx.petersen_graph(), True, False), (nx.tutte_graph(), True, False),
    (nx.dodecahedral_graph(), True, True), (nx.hypercube_graph(4), True, True),
    (nx.grid_2d_graph(6, 7), True, True),
    (nx.grid_2d_graph(7, 9), True, False),  # an odd number of tokens, in two colours
    (nx.cycle_graph(9), True, True), (nx.path_graph(9), True, False),
    (nx.star_graph(5), False, False), (two_colours(5, 6), True, False),
    (two_colours(5, 7), False, False),
], ids=str)
def test_known_graphs(graph, path, cycle):
    assert answer(graph) is path
    assert answer(graph, directed=False) is path
    assert answer(with_split_token(graph)) is cycle


def three_hanging_triangles():
    """A triangle with a triangle on a stalk at each of its tokens."""
    triangle = [(0, 1), (1, 2), (2, 0)]
    arms = [(f'{arm}{a}', f'{arm}{b}') for arm in 'abc' for a, b in triangle]
    return nx.Graph(arms + [('a0', 'b0'), ('b0', 'c0'), ('c0', 'a0')])


@pytest.mark.parametrize('graph, method, reason', [
    (BipartiteGraph(torch.tensor([[0, 1, 2], [2, 2, 3]]), 4),
     'sources and sinks', r'2 tokens can follow no other \(0, 1\); only the first may'),
    (Star().build(20) - SlidingWindow(1).build(20), 'matching', 'at most 2 edges'),
    (nx.disjoint_union(nx.cycle_graph(4), nx.cycle_graph(5)), 'removal of tokens',
     'the tokens fall into 2 components'),
    (nx.from_edgelist([(0, 1), (0, 2), (1, 2), (0, 3), (0, 4), (3, 4), (0, 5), (0, 6), (5, 6)]),
     'removal of tokens', 'without 0 the tokens fall into 3 components'),
    (nx.DiGraph([(0, 1), (1, 0), (0, 2), (2, 3), (3, 2), (0, 4), (4, 5), (5, 4), (1, 4), (3, 6),
                 (5, 6), (6, 7), (7, 6)]),
     'strong components', 'tokens [24] and [24] do not reach each other'),
    (three_hanging_triangles(), 'CP-SAT', 'proved'),
])
def test_certificates_against_a_path(graph, method, reason):
    result = hamiltonian_path(graph)
    assert (result.exists, result.method) == (False, method)
    assert re.search(reason, result.reason)
    mask = as_graph(graph).to_mask().tolist()
    assert len(mask) > 12 or not has_path(mask)


@pytest.mark.slow
@pytest.mark.parametrize('directed', [True, False])
def test_brute_force(directed):
    rng = np.random.default_rng(0)
    found = {True: 0, False: 0}
    for _ in range(50):
        mask = rng.random((12, 12)) < (rng.uniform(0.1, 0.35) if directed
                                       else rng.uniform(0.05, 0.18))
        edges = mask if directed else mask | mask.T
        exists = has_path(edges.tolist())
        assert answer(torch.from_numpy(mask), directed) is exists
        found[exists] += 1
    assert min(found.values()) >= 10


@pytest.mark.slow
def test_no_obstacle_is_seen_where_there_is_a_path():
    """A path in a random order and edges at random: every certificate against it must fail."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(2, 30))
        path = rng.permutation(n)
        mask = rng.random((n, n)) < rng.choice([0, 0.02, 0.1])
        mask[path[1:], path[:-1]] = True
        for directed in (True, False):
            links = hamiltonian._links(BipartiteGraph.from_mask(torch.from_numpy(mask)), directed)
            assert [find(links) for find in hamiltonian.OBSTACLES.values()] == [None] * 4


@pytest.mark.slow
def test_search_alone_against_brute_force():
    """CP-SAT by itself is right both ways, and rotations find no path where there is none."""
    rng = np.random.default_rng(1)
    for _ in range(30):
        mask = rng.random((8, 8)) < rng.uniform(0.2, 0.4)
        exists = has_path(mask.tolist())
        links = hamiltonian._links(BipartiteGraph.from_mask(torch.from_numpy(mask)), True)
        decided, _, path = solve(links, deadline=time.monotonic() + 600, seed=0)
        assert decided is exists
        assert not exists or steps_are_edges(np.array(path), torch.from_numpy(mask))
        path = rotate_and_extend(links, False, float('inf'), seed=0)
        assert path is None or steps_are_edges(path, torch.from_numpy(mask))


@pytest.mark.slow
@pytest.mark.parametrize('directed', [True, False])
def test_twelve_keys_each(directed):
    graph = RandomKeys(12).build(1024, seed=0)
    assert answer(graph, directed, seed=0) is True


@pytest.mark.slow
def test_time_runs_out():
    result = hamiltonian_path(nx.random_regular_graph(3, 2000, seed=1), time_limit=0.02)
    assert result.exists is None and result.path is None
    assert result.reason == 'no answer within 0.02 s'
    assert result.seconds >= 0.02


@pytest.mark.slow
def test_certificates_leave_time_for_the_search(monkeypatch):
    clock = [0.]
    monkeypatch.setattr(hamiltonian.time, 'monotonic', lambda: clock[0])
    monkeypatch.setattr(hamiltonian, 'OBSTACLES', {
        'slow': lambda links: clock.append(clock.pop() + 6), 'too late': lambda links: 'late'})
    result = hamiltonian_path(RandomKeys(8).build(50, seed=0), time_limit=11.)
    assert result.method == 'rotation-extension'


@pytest.mark.slow
def test_without_ortools(monkeypatch):
    graph = with_split_token(nx.petersen_graph())
    assert hamiltonian_path(graph).method == 'CP-SAT'
    monkeypatch.setitem(sys.modules, 'ortools.sat.python', None)
    result = hamiltonian_path(graph)
    assert result.exists is None and 'pip install' in result.reason


@pytest.mark.parametrize('wrong', [[0, 1, 3, 2], [0, 1, 2], [0, 1, 2, 2], [3, 2, 1, 0]])
def test_a_wrong_witness_is_never_returned(monkeypatch, wrong):
    monkeypatch.setattr(hamiltonian, 'rotate_and_extend', lambda *_: wrong)
    chain = BipartiteGraph(torch.tensor([[2, 0, 1], [1, 2, 3]]), 4)
    with pytest.raises(RuntimeError, match='path that was found is invalid'):
        hamiltonian_path(chain)


@pytest.mark.parametrize('options, error', [
    ({'time_limit': 0}, ValueError), ({'time_limit': float('nan')}, ValueError),
    ({'time_limit': float('inf')}, ValueError), ({'time_limit': '3'}, TypeError),
    ({'directed': 1}, TypeError), ({'seed': -1}, ValueError), ({'seed': 0.5}, TypeError)])
def test_bad_options(options, error):
    with pytest.raises(error, match=f"'{[*options][0]}' must"):
        hamiltonian_path(nx.path_graph(3), **options)


@pytest.mark.slow
def test_command_without_direction(tmp_path):
    nx.write_edgelist(nx.DiGraph([(0, 1), (2, 1)]), tmp_path / 'vee.txt', data=False)
    arguments = ['--graph', str(tmp_path / 'vee.txt'), '--out',
                 str(tmp_path / 'hamiltonian.json')]
    for directed in (True, False):
        main([*arguments, '--directed', str(directed).lower()])
        saved = json.loads((tmp_path / 'hamiltonian.json').read_text())
        assert saved['vee.txt'][0]['exists'] is not directed
        assert saved['vee.txt'][0]['symmetrization'] == ('none' if directed else 'union')
    nx.write_edgelist(nx.Graph([(0, 1), (2, 1)]).to_directed(), tmp_path / 'vee.txt', data=False)
    main(arguments)
    assert json.loads((tmp_path / 'hamiltonian.json').read_text())['vee.txt'][0][
        'symmetrization'] == 'not needed'
