"""Mixing: closed forms, the theorems, and walks that do not mix."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.sparse.linalg import ArpackNoConvergence

from analysis import walk as walks
from analysis.mixing import mixing
from analysis.walk import uniform_attention
from graphattn import BipartiteGraph, patterns
from graphattn.patterns import parse

ROUNDING = 1e-12
CYCLE, K4 = nx.cycle_graph(5, create_using=nx.DiGraph), nx.complete_graph(4)


def with_loops(graph):
    graph = graph.copy()
    graph.add_edges_from((node, node) for node in graph)
    return graph


REVERSIBLE = {
    'complete': nx.complete_graph(7), 'odd cycle': nx.cycle_graph(9),
    'cycle with loops': with_loops(nx.cycle_graph(8)), 'star with loops': with_loops(
        nx.star_graph(6)), 'path with loops': with_loops(nx.path_graph(9)),
    'hypercube with loops': with_loops(nx.hypercube_graph(4)), 'petersen': nx.petersen_graph(),
    'regular': nx.random_regular_graph(4, 30, seed=0), 'lollipop': nx.lollipop_graph(6, 4),
    'margulis': nx.Graph(nx.margulis_gabber_galil_graph(4)),
    'window': patterns.SlidingWindow(2).build(24),
    'longformer': parse('SlidingWindow(2) | GlobalTokens(1)').build(24),
}
DIRECTED = {
    'random keys': parse('SlidingWindow(1) | RandomKeys(2)').build(40, seed=0),
    'random keys alone': parse('RandomKeys(8)').build(40, seed=1),
    'diffuser': parse('diffuser(window=4, num_global=2, num_random=2)').build(40, seed=0),
    'one edge more than a cycle': with_loops(CYCLE),
}


def walk_of(graph, lazy=False):
    """Row-stochastic, dense, written anew; every query here has a key."""
    mask = uniform_attention(graph, keyless='stay').toarray() > 0
    walk = mask / mask.sum(axis=1, keepdims=True)
    return (walk + np.eye(len(walk))) / 2 if lazy else walk


def distances_by_powers(walk, stationary, steps):
    powers = [np.linalg.matrix_power(walk, step) for step in range(steps)]
    return np.array([np.abs(power - stationary).sum(axis=1).max() / 2 for power in powers])


@pytest.mark.parametrize('name, lazy', [*((name, False) for name in REVERSIBLE | DIRECTED),
                                        ('path with loops', True), ('random keys', True)])
def test_distance_is_that_of_matrix_powers_and_below_the_bound(name, lazy):
    graph = (REVERSIBLE | DIRECTED)[name]
    result = mixing(graph, steps=30, lazy=lazy)
    walk = walk_of(graph, lazy)
    assert np.allclose(result.stationary @ walk, result.stationary, atol=ROUNDING)
    assert result.stationary.sum() == pytest.approx(1)
    expected = distances_by_powers(walk, result.stationary, len(result.distance))
    assert np.allclose(result.distance, expected, atol=1e-11)
    assert (result.distance <= result.bound + ROUNDING).all()
    assert (np.diff(result.distance) <= ROUNDING).all()
    assert result.is_reversible == (name in REVERSIBLE)
    assert result.beta <= result.sigma + 1e-9
    # An eigenfunction orthogonal to constants keeps the walk away: Levin and Peres, Eq. 12.15.
    assert (result.distance >= result.beta ** np.arange(len(result.distance)) / 2 - 1e-11).all()


@pytest.mark.parametrize('name, beta', [
    ('complete', 1 / 6), ('odd cycle', math.cos(math.pi / 9)),
    ('cycle with loops', (1 + 2 * math.cos(math.pi / 4)) / 3),
    ('hypercube with loops', 3 / 5), ('petersen', 2 / 3),
])
def test_closed_forms_of_beta(name, beta):
    assert mixing(REVERSIBLE[name]).beta == pytest.approx(beta, abs=1e-12)


@pytest.mark.parametrize('name', ['complete', 'odd cycle', 'petersen', 'regular'])
def test_theorem_3_on_regular_graphs(name):
    """The l1 distance is at most sqrt(n) beta^t: half of it is total variation."""
    result = mixing(REVERSIBLE[name], steps=60)
    theorem = math.sqrt(result.num_tokens) * result.beta ** np.arange(len(result.distance))
    assert (2 * result.distance <= theorem + ROUNDING).all()
    assert (2 * result.bound <= theorem + ROUNDING).all()


def test_mixing_time_is_the_first_step_below_epsilon():
    result = mixing(REVERSIBLE['path with loops'], epsilon=0.05)
    assert result.distance[result.mixing_time] <= 0.05 < result.distance[result.mixing_time - 1]
    assert result.mixing_time <= result.mixing_time_bound
    too_soon = mixing(REVERSIBLE['path with loops'], epsilon=0.05, steps=result.mixing_time - 1)
    assert too_soon.mixing_time is None
    assert too_soon.reason == f'not mixed after {result.mixing_time - 1} steps'


@pytest.mark.parametrize('graph, period, far', [
    (nx.cycle_graph(6), 2, 0.5), (nx.star_graph(5), 2, 0.5), (nx.hypercube_graph(3), 2, 0.5),
    (CYCLE, 5, 0.8),
    (nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (1, 4), (4, 5), (5, 0)]), 4, None),
])
def test_periodic_walks_do_not_mix_unless_lazy(graph, period, far):
    result = mixing(graph, steps=40)
    assert result.period == period and result.closed_classes == 1
    assert result.beta == pytest.approx(1) and result.mixing_time is None
    assert result.reason == f'period {period}'
    assert result.distance[-1] >= 0.5 - 1e-9
    if far is not None:
        assert result.distance[-1] == pytest.approx(far)
    lazy = mixing(graph, steps=400, lazy=True)
    assert lazy.period == 1 and lazy.mixing_time is not None and lazy.beta < 1


def few_lead_on(n):
    """Every query attends to the first three tokens and to the next one, which few walks reach."""
    mask = np.zeros((n, n), dtype=bool)
    mask[:, :3] = mask[np.arange(n - 1), np.arange(1, n)] = True
    return mask


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('mask', [few_lead_on(40), walk_of(DIRECTED['random keys']) > 0])
def test_numbering_of_the_tokens_plays_no_part(mask, seed):
    order = np.random.default_rng(seed).permutation(len(mask))
    first, other = (mixing(torch.from_numpy(each)) for each in (mask, mask[np.ix_(order, order)]))
    assert np.allclose(other.stationary, first.stationary[order], rtol=1e-10, atol=0)
    assert other.sigma == pytest.approx(first.sigma, abs=1e-12)
    assert other.closed_classes == first.closed_classes == 1
    for name in ('mixing_time', 'mixing_time_bound', 'restart_mixing_time'):
        assert getattr(other, name) == getattr(first, name)


@pytest.mark.slow
def test_rare_tokens_in_closed_form():
    """Each token that is no hub has a quarter of the one before; the last has three keys."""
    stationary = mixing(torch.from_numpy(few_lead_on(300))).stationary
    assert np.allclose(stationary[3:] / stationary[2:-1], 0.25, rtol=1e-12, atol=0)
    assert stationary.min() < 1e-170


@pytest.mark.slow
def test_without_sigma_where_probabilities_underflow():
    order = np.random.default_rng(0).permutation(540)
    result = mixing(torch.from_numpy(few_lead_on(540)[np.ix_(order, order)]), starts=2)
    assert 0 <= result.stationary.min() < 1e-300 and result.stationary.sum() == pytest.approx(1)
    assert result.sigma is None and result.mixing_time_bound is None and result.mixing_time == 1


def test_without_sigma_where_an_iteration_gave_rounding_for_probabilities(monkeypatch):
    monkeypatch.setattr(walks, 'MAX_DENSE', 10)
    result = mixing(torch.from_numpy(few_lead_on(40)))
    assert result.sigma is None and result.closed_classes == 1
    rare = result.stationary < 1e-12
    assert 15 < rare.sum() < 25 and not result.stationary[rare].any()


@pytest.mark.parametrize('n', [7, 12])
def test_a_tie_with_epsilon_counts_as_mixed(n):
    """On a complete graph with loops a lazy walk halves its distance in each step, but for
    rounding."""
    result = mixing(with_loops(nx.complete_graph(n)), lazy=True, epsilon=(n - 1) / n / 4)
    assert result.distance[2] == pytest.approx(result.epsilon, abs=1e-15)
    assert result.mixing_time == 2


def test_one_token():
    result = mixing(nx.complete_graph(1))
    assert (result.beta, result.sigma, result.mixing_time) == (0., 0., 0)
    assert result.mixing_time_bound == 0 and result.distance.tolist() == [0.]


# Restarts ############################################################################


@pytest.mark.parametrize('teleport', [0.1, 1.])
@pytest.mark.parametrize('graph', [*REVERSIBLE.values(), *DIRECTED.values(), nx.cycle_graph(6),
                                   CYCLE])
def test_restart_walk_goes_to_its_own_limit_geometrically(graph, teleport):
    result = mixing(graph, teleport=teleport, steps=40)
    walk, n = walk_of(graph), result.num_tokens
    limit = teleport * np.linalg.inv(np.eye(n) - (1 - teleport) * walk)
    mass, expected = np.eye(n), []
    for _ in result.restart_distance:
        expected.append(np.abs(mass - limit).sum(axis=1).max() / 2)
        mass = (1 - teleport) * mass @ walk + teleport * np.eye(n)
    assert np.allclose(result.restart_distance, expected, atol=1e-12)
    assert (result.restart_distance <= result.restart_bound + ROUNDING).all()
    assert result.restart_seed_mass == pytest.approx(limit.diagonal().min())
    assert result.restart_seed_mass >= teleport - ROUNDING
    apart = np.abs(limit - result.stationary).sum(axis=1).max() / 2
    assert result.restart_from_stationary == pytest.approx(apart, abs=1e-12)


def test_restart_bound_is_reached():
    """A walk that never returns to its seed nor to any token it has seen."""
    path = nx.DiGraph([(i, i + 1) for i in range(39)])
    result = mixing(path, steps=30)
    assert np.allclose(result.restart_distance, result.restart_bound)


# Size ################################################################################


@pytest.mark.slow
@pytest.mark.parametrize('expression', [
    'SlidingWindow(2) | RandomKeys(2)', 'SlidingWindow(2) | GlobalTokens(1)',
])
def test_iterative_and_dense_ways_agree(expression, monkeypatch):
    graph = parse(expression).build(120, seed=3)
    dense = mixing(graph)
    for limit in ('MAX_DENSE', '_MAX_SYMMETRIC', '_MAX_GENERAL'):
        monkeypatch.setattr(walks, limit, 10)
    monkeypatch.setattr('analysis.mixing._STARTS_AT_ONCE', 50)
    other = mixing(graph)
    assert other.beta == pytest.approx(dense.beta, abs=1e-6)
    assert other.sigma == pytest.approx(dense.sigma, abs=1e-8)
    assert np.allclose(other.stationary, dense.stationary, atol=1e-10)
    assert np.allclose(other.distance[:60], dense.distance[:60], atol=1e-10)
    assert np.allclose(other.restart_distance[:60], dense.restart_distance[:60], atol=1e-10)


def test_blocks_of_starts_that_end_early_do_not_cut_the_curve(monkeypatch):
    """The last start, token 0, is at its limit at once; the first takes five steps."""
    chain = nx.DiGraph([(i, i + 1) for i in range(5)])  # query i + 1 moves to i; 0 stays
    graph = nx.DiGraph()
    graph.add_nodes_from(reversed(range(6)))
    graph.add_edges_from(chain.edges)
    full = mixing(graph, steps=20)
    monkeypatch.setattr('analysis.mixing._STARTS_AT_ONCE', 1)
    assert np.array_equal(mixing(graph, steps=20).distance, full.distance)
    assert full.mixing_time == 5


def test_sampled_starts_are_said_and_bound_from_below(monkeypatch):
    graph = DIRECTED['random keys']
    full = mixing(graph)
    assert full.all_starts and full.starts == 40
    some = mixing(graph, starts=5, starts_seed=1)
    assert not some.all_starts and some.starts == 5
    assert (some.distance[:20] <= full.distance[:20] + ROUNDING).all()
    assert np.array_equal(some.distance, mixing(graph, starts=5, starts_seed=1).distance)
    assert not np.array_equal(some.distance, mixing(graph, starts=5, starts_seed=2).distance)
    monkeypatch.setattr('analysis.mixing._ALL_STARTS_UP_TO', 39)
    assert mixing(graph).starts == 40  # 64 are wanted
    monkeypatch.setattr('analysis.mixing._SAMPLED_STARTS', 8)
    assert mixing(graph).starts == 8


def arrows(n, steps):
    """Query i has the keys that lie some steps ahead on a circle, or that ``steps`` gives."""
    of_query = steps if callable(steps) else lambda i: [i + step for step in steps]
    edges = [(key % n, query) for query in range(n) for key in of_query(query)]
    return BipartiteGraph.from_edge_index(torch.tensor(edges).T, n)


@pytest.mark.slow
@pytest.mark.parametrize('base, n', [(2, 4), (2, 256), (2, 2048), (3, 243), (5, 125)])
def test_beta_of_shifts_is_0_or_not_known(base, n):
    """Each walk is anywhere alike after as many steps as digits: all other eigenvalues are 0, in
    Jordan blocks that rounding opens to a disc."""
    shift = uniform_attention(arrows(n, lambda i: range(base * i, base * i + base)))
    beta = walks.second_modulus(shift, np.zeros(n, dtype=int))
    assert beta is None or beta <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize('n', [5, 301, 1100])
@pytest.mark.parametrize('steps', [(0, 1), (1, 2, 4), (0, 1, -1, 3)])
def test_beta_of_steps_on_a_circle_in_closed_form(n, steps):
    moduli = np.sort(np.abs(np.exp(2j * np.pi * np.outer(np.arange(n), steps) / n).mean(axis=1)))
    walk = uniform_attention(arrows(n, steps))
    beta = walks.second_modulus(walk, np.zeros(n, dtype=int))
    assert beta is None and n > 1024 or beta == pytest.approx(moduli[-2], abs=1e-6)


def test_beta_is_not_known_where_nothing_converges(monkeypatch):
    def fail(walk):
        raise ArpackNoConvergence('No convergence', np.empty(0), np.empty((0, 0)))

    monkeypatch.setattr(walks, '_MAX_GENERAL', 1)
    monkeypatch.setattr(walks, '_second_pair', fail)
    assert walks.second_modulus(uniform_attention(K4), np.zeros(4, dtype=int)) is None


TELEPORTS = [1., 1e-3, 1e-9, 1e-300]


@pytest.mark.parametrize('teleport', TELEPORTS)
@pytest.mark.parametrize('n', [3, 31])
def test_limits_on_a_cycle_in_closed_form(n, teleport):
    """They fall by a constant factor in both directions, for which see a random walk that dies."""
    walk = uniform_attention(nx.cycle_graph(n))
    limits_ = walks.restart_limits(walk, np.arange(n), teleport, np.full(n, 1 / n))
    keeps = 1 - teleport
    factor = keeps / (1 + math.sqrt((2 - teleport) * teleport))
    steps = np.arange(n)
    shape = factor**steps + factor ** (n - steps)
    expected = (shape / shape.sum())[(steps[:, None] - steps) % n]
    assert np.allclose(limits_, expected, rtol=1e-11, atol=1e-300)
    assert np.allclose(limits_.sum(axis=0), 1, atol=1e-12)


@pytest.mark.parametrize('teleport', TELEPORTS)
@pytest.mark.parametrize('name, is_fast', [
    ('complete', True), ('regular', True), ('random keys', True), ('window', True),
    ('odd cycle', True), ('long cycle', False), ('parts', False), ('periodic', False)])
def test_limits_of_many_tokens_are_right_or_refused(name, is_fast, teleport, monkeypatch):
    graph = (REVERSIBLE | DIRECTED | {
        'long cycle': nx.cycle_graph(301), 'parts': nx.disjoint_union(CYCLE, nx.DiGraph(K4)),
        'periodic': arrows(12, (1, 5))})[name]
    walk = uniform_attention(graph)
    sources = np.arange(min(9, walk.shape[0]))
    expected = walks.restart_limits(walk, sources, teleport, None)
    stationary = mixing(graph).stationary
    monkeypatch.setattr(walks, 'MAX_DENSE', 1)
    try:
        found = walks.restart_limits(walk, sources, teleport, stationary)
    except ValueError as error:
        assert not is_fast and teleport < 1e-6 and "'teleport' is too small" in str(error)
    else:
        assert np.allclose(found, expected, atol=1e-9)
        assert np.allclose(found.sum(axis=0), 1, atol=1e-9)


@pytest.mark.parametrize('options, error', [
    ({'epsilon': 0.}, ValueError), ({'epsilon': math.nan}, ValueError),
    ({'teleport': 1.5}, ValueError), ({'teleport': '0.1'}, TypeError), ({'steps': 0}, ValueError),
    ({'steps': 2.}, TypeError), ({'starts': 0}, ValueError), ({'starts_seed': -1}, ValueError)])
def test_bad_options(options, error):
    with pytest.raises(error, match=f"'{[*options][0]}' must be"):
        mixing(CYCLE, **options)


def test_graphs_it_cannot_walk_on(monkeypatch):
    with pytest.raises(ValueError, match="'graph' must have as many keys as queries"):
        mixing(patterns.SlidingWindow(1).build(3, 4))
    with pytest.raises(TypeError, match="'graph' must be a BipartiteGraph"):
        mixing('star')
    monkeypatch.setattr('analysis.mixing._MAX_LIMIT', 20)
    with pytest.raises(ValueError, match=r"'starts' must.*most 4.*5 tokens \(got 5\)"):
        mixing(CYCLE)
