"""SparseBERT's Theorem 1 and Diffuser's Lemmas 6 to 8: when they are meant, what their steps do."""

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import torch

from analysis.universality import (
    is_full_without_diagonal,
    piecewise_constant,
    selective_shift,
    three_tokens,
    universality,
)
from analysis.universality.__main__ import main
from analysis.universality.selective_shift import (
    hard_attention,
    path_with_global_token,
    sequences_in_order,
)
from graphattn.patterns import Full, RandomKeys, SlidingWindow

NO_DIAGONAL = Full() - SlidingWindow(0)


# Without its diagonal ############################################################################

@pytest.mark.parametrize('pattern, n, expected', [
    (NO_DIAGONAL, 3, True), (NO_DIAGONAL, 20, True), (NO_DIAGONAL, 2, False),
    (NO_DIAGONAL, 1, False), (NO_DIAGONAL, 0, False), (Full(), 5, False),
    (SlidingWindow(2) - SlidingWindow(0), 5, False), (SlidingWindow(0), 3, False),
    (RandomKeys(4), 5, False)])
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


def test_every_pattern_must_be_without_diagonal():
    both = universality([NO_DIAGONAL.build(8), Full().build(8)])
    assert both.sparsebert_theorem_1 is False


@pytest.mark.parametrize('steps', [3, 4, 7, 20])
def test_three_tokens(steps):
    result = three_tokens(steps)
    assert result.sequences == steps * (steps - 1) * (steps - 2) // 6
    assert result.as_printed and result.in_order and result.one_to_one and result.distinct


def attention_layer(z, steps, number):
    """The layer as attention: two heads without a diagonal, by softmax so sharp that it is hard."""
    sharp = 1e9
    keys = z.expand(3, 3).clone().fill_diagonal_(-torch.inf)
    largest = (sharp * keys).softmax(dim=1)
    smallest = (-sharp * z.expand(3, 3)).masked_fill(torch.eye(3, dtype=torch.bool),
                                                     -torch.inf).softmax(dim=1)
    is_chosen = (number - 0.5) / steps < z
    is_chosen &= z < (number + 0.5) / steps
    return z + steps * is_chosen * ((largest - smallest) @ z)


def test_three_tokens_is_what_attention_does():
    """The shift of one sequence in float64, in any order of its tokens."""
    steps, values = 8, (1, 4, 6)
    first = 1 + steps * (6 - 4)
    second = 4 + steps * (first - 6)
    third = 6 + steps * (second - first)
    for order in permutations(range(3)):
        z = torch.tensor([values[i] for i in order], dtype=torch.double) / steps
        for number in range(steps):
            z = attention_layer(z, steps, number)
        expected = torch.tensor([(first, second, third)[i] for i in order]).double() / steps
        torch.testing.assert_close(z, expected)


# Diffuser's Lemma 8 ##############################################################################

@pytest.mark.parametrize('tokens, steps', [(3, 2), (3, 5), (4, 3), (5, 2)])
def test_selective_shift(tokens, steps):
    result = selective_shift(tokens, steps)
    assert result.sequences == steps**tokens
    assert result.shift and result.largest
    assert not result.smallest and not result.one_to_one_as_run
    assert result.one_to_one and result.distinct


def test_the_smallest_token_keeps_the_walk():
    """Why S.19 fails: the second token takes itself and not the third."""
    neighbours = path_with_global_token(5)
    for z in sequences_in_order(5, 2):
        assert z[1] < z[2] < z[3] < z[4] < z[0]
        taken = hard_attention(z, neighbours, z[0] + 1)
        assert taken[0] == 1 and taken[1] == 1
    assert hard_attention(z, neighbours, z[0] - Fraction(1, 100))[0] == 0


def test_neighbours_are_a_path_and_a_global_token():
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for query, keys in enumerate(path_with_global_token(6)):
        mask[query, list(keys)] = True
    result = universality([mask])
    assert result.assumption_1 is True and mask[0].all() and mask[:, 0].all()


# Diffuser's Lemmas 6 and 7 ########################################################################

@pytest.mark.parametrize('tokens, steps', [(3, 2), (3, 5), (4, 3)])
def test_a_piecewise_constant_function(tokens, steps):
    result = piecewise_constant(tokens, steps)
    assert result.cells == steps**tokens
    assert 0 < result.distance < result.bound
    assert result.represented and not result.represented_as_run and result.left_as_run > 0.01


@pytest.mark.slow
def test_the_distance_falls_with_the_grid():
    """Lemma 6: in proportion to delta, for the function is smooth."""
    coarse, fine = (piecewise_constant(3, steps).distance for steps in (4, 8))
    assert coarse / fine == pytest.approx(2, rel=0.05)


def test_the_distance_is_that_of_random_points():
    rng = np.random.default_rng(0)
    x = rng.random((200_000, 3))
    corner = np.floor(4 * x) / 4
    apart = (np.sin(x + x.sum(axis=1, keepdims=True))
             - np.sin(corner + corner.sum(axis=1, keepdims=True)))
    expected = math.sqrt((apart**2).sum(axis=1).mean())
    assert piecewise_constant(3, 4).distance == pytest.approx(expected, rel=0.01)


# Bad input and the command #######################################################################

@pytest.mark.parametrize('call, error, message', [
    (lambda: three_tokens(2), ValueError, "'steps' must be at least 3"),
    (lambda: three_tokens(65), ValueError, "'steps' must be at most 64"),
    (lambda: three_tokens(8.), TypeError, "'steps' must be an int"),
    (lambda: selective_shift(2, 3), ValueError, "'tokens' must be at least 3"),
    (lambda: selective_shift(3, 1), ValueError, "'steps' must be at least 2"),
    (lambda: selective_shift(30, 3), ValueError, "'steps' .* must be at most"),
    (lambda: piecewise_constant(30, 3), ValueError, "'steps' .* must be at most"),
    (lambda: piecewise_constant(3, 4.), TypeError, "'steps' must be an int"),
])
def test_bad_numbers(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.slow
def test_command_runs_the_constructions(tmp_path, capsys):
    main(['--pattern', 'Full() - SlidingWindow(0)', '--n', '8', '--steps', '4', '--out',
          str(tmp_path)])
    table = {line.split('  ')[0].strip(): line.split()[-4:]
             for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert table['sparsebert theorem 1'] == ['yes', '-', '-', '-']
    assert table['one to one'] == ['-', 'yes', 'yes', '-']
    assert table['smallest'] == ['-', '-', 'no', '-']
    assert table['represented'] == ['-', '-', '-', 'yes']
