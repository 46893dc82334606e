"""Assumption 1 against its definition, and what Lemma 2 really gives."""

import json

import networkx as nx
import numpy as np
import pytest
import torch

from analysis import command
from analysis.commands import COMMANDS
from analysis.universality import (
    Clusters,
    Relays,
    diffusion_universality,
    is_full_without_diagonal,
    is_rectangle,
    lemma_2,
    universality,
)
from graphattn import BipartiteGraph
from graphattn.patterns import Causal, Full, GlobalTokens, RandomKeys, SlidingWindow, Star

ITSELF = SlidingWindow(0)
NO_DIAGONAL = Full() - ITSELF
main = COMMANDS['universality']


def reach_by_definition(masks, layers):
    """Sizes of S_i^t over n, from sets of tokens."""
    attended = [[set(np.flatnonzero(row)) for row in mask.numpy()] for mask in masks]
    known, shares = attended[0], []
    for t in range(1, layers + 1):
        if t > 1:
            pattern = attended[(t - 1) % len(masks)]
            known = [set().union(*(known[j] for j in keys)) for keys in pattern]
        shares.append(sum(map(len, known)) / len(known)**2)
    return shares


@pytest.mark.parametrize('patterns, layers', [
    ([Full()], 1), ([Star()], 2), ([ITSELF, Full()], 2), ([ITSELF, ITSELF, Star()], 6),
    ([Causal()], None), ([ITSELF], None), ([Clusters(2)], None),
])
def test_layers_of_patterns(patterns, layers):
    result = universality([pattern.build(12) for pattern in patterns])
    assert result.layers == layers
    assert (layers is None) == any('condition 3: reach repeats' in text for text in result.reasons)
    assert result.assumption_1 is (layers is not None)


@pytest.mark.slow
@pytest.mark.parametrize('chunk', [1, 2**23])
def test_reach_by_its_definition(chunk, monkeypatch):
    """Random patterns with and without self-loops, and queries that attend to nothing."""
    monkeypatch.setattr('analysis.walk.BYTES_AT_ONCE', chunk)
    rng = np.random.default_rng(0)
    reached_all = 0
    for _ in range(60):
        n, count = int(rng.integers(1, 80)), int(rng.integers(1, 4))
        masks = [torch.from_numpy(rng.random((n, n)) < rng.uniform(0, 4 / n))
                 for _ in range(count)]
        if rng.random() < 0.5:
            masks = [mask | torch.eye(n, dtype=torch.bool) for mask in masks]
        result = universality(masks)
        expected = reach_by_definition(masks, result.reach.size)
        assert result.reach == pytest.approx(expected, abs=1e-12)
        full = [layer for layer, share in enumerate(expected, start=1) if share == 1]
        assert result.layers == (full[0] if full else None)
        reached_all += bool(full)
    assert 10 < reached_all < 50


def test_each_condition_alone():
    window, star = SlidingWindow(1).build(9), GlobalTokens(1).build(9)
    no_loops = universality([window, window.without_self_loops()])
    assert (no_loops.self_loops, no_loops.hamiltonian_path) == (False, True)
    assert no_loops.assumption_1 is False and 'pattern 2 lacks' in no_loops.reasons[0]

    no_path = universality([star.with_self_loops()])
    assert (no_path.self_loops, no_path.hamiltonian_path, no_path.layers) == (True, False, 2)
    assert no_path.assumption_1 is False and no_path.reasons[0].startswith('condition 2: ')

    no_reach = universality([Causal().build(9)])
    assert (no_reach.self_loops, no_reach.hamiltonian_path) == (True, True)
    assert no_reach.assumption_1 is False and no_reach.layers is None


@pytest.mark.slow
def test_an_unknown_path_is_not_a_failure():
    hard = nx.random_regular_graph(3, 2000, seed=1)
    result = universality([BipartiteGraph.from_networkx(hard).with_self_loops()], time_limit=0.02)
    assert (result.hamiltonian_path, result.assumption_1) == (None, None)


def test_diffuser():
    """Its window holds a path, but its first token is global only if we make it so."""
    window, globally = SlidingWindow(2), SlidingWindow(2) | GlobalTokens((3,))
    result = diffusion_universality(window.build(16), hops=17)
    assert (result.assumption_1, result.global_first_token) == (True, False)
    result = diffusion_universality(globally.build(16), hops=17)
    assert (result.assumption_1, result.global_first_token, result.enough_hops) == (True,) * 3
    assert result.reasons == ()
    result = diffusion_universality(globally.build(16), hops=16)
    assert result.enough_hops is False and 'more hops than the 16 tokens' in result.reasons[0]


@pytest.mark.parametrize('pattern, n, expected', [
    (NO_DIAGONAL, 3, True), (NO_DIAGONAL, 2, False), (NO_DIAGONAL, 0, False), (Full(), 5, False),
    (SlidingWindow(2) - SlidingWindow(0), 5, False), (RandomKeys(4), 5, False)])
def test_which_patterns_the_theorem_is_about(pattern, n, expected):
    graph = pattern.build(n, seed=0)
    assert is_full_without_diagonal(graph) is expected
    assert universality([graph]).sparsebert_theorem_1 is expected


def test_full_without_diagonal_is_answered_by_both_theorems():
    result = universality([NO_DIAGONAL.build(8)])
    assert (result.assumption_1, result.sparsebert_theorem_1) == (False, True)
    assert result.reasons == ('condition 1: pattern 1 lacks self-loops',)
    full = universality([Full().build(8)])
    assert (full.assumption_1, full.sparsebert_theorem_1) == (True, False)
    both = universality([NO_DIAGONAL.build(8), Full().build(8)])
    assert both.sparsebert_theorem_1 is False


def test_every_pattern_must_be_without_diagonal():
    both = universality([NO_DIAGONAL.build(8), Full().build(8)])
    assert both.sparsebert_theorem_1 is False


@pytest.mark.parametrize('n, k', [(16, 4), (37, 5), (12, 2)])
def test_lemma_2(n, k):
    graphs = [pattern.build(n) for pattern in lemma_2(k)]
    one, two, three = graphs
    assert universality(graphs).assumption_1 is True
    assert universality(graphs).layers == (5 if k > 2 else 4)  # the paper says 3
    assert universality([one, three, two]).layers == 3
    assert two == three.transpose()
    assert two.in_degree().tolist() == [k + 1] * (n - k) + [k] * k


def test_lemma_2_of_two_lengths():
    """Fewer keys than queries, as every pattern of the library allows."""
    assert Clusters(2).build(4, 2).to_mask().tolist() == [[True, False]] * 2 + [[False, True]] * 2
    assert Relays(1).build(2, 3).to_mask().tolist() == [[False, False, True]] * 2
    assert Relays(1, listen=True).build(2, 3).to_mask().tolist() == [[False] * 3, [True] * 3]
    assert Relays(5).build(2, 3) == Full().build(2, 3)
    assert Relays(0).build(3).num_edges == 0


@pytest.mark.parametrize('graph, expected', [
    (Full().build(2, 3), True), (ITSELF.build(5), True), ((ITSELF | Relays(2)).build(6), True),
    (SlidingWindow(1).build(5), False), (Causal().build(4), False), (Clusters(2).build(6), False),
    (GlobalTokens(1).build(4) & Relays(4).build(4), False),
    (BipartiteGraph(torch.tensor([[0, 1], [2, 2]]), 3), True),
    (BipartiteGraph(torch.tensor([[0, 1], [2, 3]]), 4), False)])
def test_rectangles(graph, expected):
    assert is_rectangle(graph) is expected


@pytest.mark.parametrize('call, error, name', [
    (lambda: universality([]), ValueError, 'graphs'),
    (lambda: universality(Full().build(3)), TypeError, 'graphs'),
    (lambda: universality([Full().build(3), Full().build(4)]), ValueError, 'graphs'),
    (lambda: universality([Full().build(3, 4)]), ValueError, 'graphs'),
    (lambda: universality([[[True]]]), TypeError, 'graph'),
    (lambda: universality([Full().build(3)], max_layers=0), ValueError, 'max_layers'),
    (lambda: universality([Full().build(3)], time_limit=0), ValueError, 'time_limit'),
    (lambda: diffusion_universality(Full().build(3), hops=0), ValueError, 'hops'),
    (lambda: Clusters(0), ValueError, 'count'),
    (lambda: Relays(1, listen=1), TypeError, 'listen')])
def test_bad_input(call, error, name):
    with pytest.raises(error, match=f"'{name}' must"):
        call()


def saved(folder):
    return json.loads((folder / 'universality.json').read_text())


@pytest.mark.slow
def test_command_keeps_the_order_and_repeats(tmp_path, capsys):
    main(['--pattern', 'SlidingWindow(1)', 'SlidingWindow(1)', 'Star()', '--n', '9', '--hops',
          '5', '--out', str(tmp_path / 'universality.json')])
    results = saved(tmp_path)
    assert results['in turn'][0]['patterns'] == 3 and results['in turn'][0]['layers'] == 5
    assert results['diffusion, layer 3, Star()'][0]['global_first_token'] is True
    assert 'layer 1, SlidingWindow(1): the proof needs more hops' in capsys.readouterr().out


@pytest.mark.slow
def test_heads_of_a_layer_work_side_by_side(tmp_path, monkeypatch):
    """Two layers of two heads, three samples of each."""
    heads = {f'layer {layer}, head {head}': [(ITSELF | Relays(1, listen=bool(head))).build(6)] * 3
             for layer in range(2) for head in range(2)}
    monkeypatch.setattr(command, 'load', lambda options: (heads, None))
    main(['--checkpoint', 'some.ckpt', '--samples', '3', '--out',
          str(tmp_path / 'universality.json')])
    results = saved(tmp_path)['in turn']
    assert [result['patterns'] for result in results] == [2] * 3
    assert [result['layers'] for result in results] == [2] * 3  # one head after the other needs 4
