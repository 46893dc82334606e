import numpy as np
import pytest

from experiments.data.listops import (
    END,
    MED,
    MIN,
    SM,
    SYMBOLS,
    GeneratedListOps,
    draw_trees,
    evaluate,
    shares,
)
from experiments.data.sequences import PARTS, Sequences

SMALL = dict(num_train=600, num_dev=60, num_test=60, min_length=100, max_length=500)


@pytest.fixture(scope='module')
def published():
    """Trees of 500 to 2,000 tokens."""
    tokens, ptr = draw_trees(np.random.default_rng(0), 4000, 10**6, 500, 2000, 10, 10)
    return Sequences(tokens, ptr, evaluate(tokens, ptr))


def tree(text):
    return np.array([SYMBOLS.index(symbol) for symbol in text.split()], np.uint8)


@pytest.mark.parametrize('text, expected', [
    ('7', 7), ('[MIN 4 2 9 ]', 2), ('[MAX 4 2 9 ]', 9), ('[SM 4 2 9 ]', 5), ('[MED 4 2 9 ]', 4),
    ('[MED 4 7 ]', 5),  # 5.5, rounded down
    ('[MED 1 [MAX 3 8 ] [SM 9 [MIN 6 5 ] ] 0 ]', 2)])  # of 1, 8, 4 and 0
def test_a_tree_comes_to_its_value(text, expected):
    assert evaluate(tree(text), np.array([0, len(text.split())])).tolist() == [expected]


def by_recursion(tokens):
    """The value of a tree, and what is left of the tokens."""
    first, *rest = tokens
    if first < MIN:
        return first, rest
    digits = []
    while rest[0] != END:
        digit, rest = by_recursion(rest)
        digits.append(digit)
    operation = {MIN: min, MIN + 1: max, MED: lambda x: int(np.median(x)),
                 SM: lambda x: sum(x) % 10}
    return operation[first](digits), rest[1:]


@pytest.mark.slow
def test_values_are_those_of_a_recursion(published):
    for number in range(50):
        expected, rest = by_recursion(published.sequence(number).tolist())
        assert not rest and published.label[number] == expected


@pytest.mark.slow
def test_the_shares_of_the_published_rules(published):
    """The reference: 60,000 trees of Long Range Arena's own generator."""
    found = shares(published)
    assert found['length, mean'] == pytest.approx(1035, rel=0.03)
    assert found['length, 5 %'] == pytest.approx(539, rel=0.02)
    assert found['length, 50 %'] == pytest.approx(955, rel=0.05)
    assert found['length, 95 %'] == pytest.approx(1804, rel=0.03)
    assert found['depth, mean'] == 10.
    assert found['digits'] == pytest.approx(0.716, abs=0.003)
    assert found[']'] == pytest.approx(0.142, abs=0.003)
    for operator in SYMBOLS[MIN:END]:
        assert found[operator] == pytest.approx(0.036, abs=0.001)
    expected = np.array([17.0, 8.9, 7.9, 8.2, 8.9, 8.6, 7.8, 7.3, 8.6, 16.9]) / 100
    assert np.allclose([found[f'value {digit}'] for digit in range(10)], expected, atol=0.03)


def test_lengths_and_depth_are_within_bounds():
    tokens, ptr = draw_trees(np.random.default_rng(2), 200, 10**6, 30, 60, 4, 5)
    assert np.diff(ptr).min() > 30 and np.diff(ptr).max() < 60
    level = np.cumsum(np.where(tokens < MIN, 0, np.where(tokens == END, -1, 1)))
    assert level.max() <= 3


@pytest.mark.slow
def test_all_trees_are_distinct_and_depend_on_the_seed_alone(tmp_path):
    first = GeneratedListOps(**SMALL, cache=str(tmp_path / 'a')).read(500)
    again = GeneratedListOps(**SMALL, cache=str(tmp_path / 'b')).read(500)
    other = GeneratedListOps(**SMALL, seed=1, cache=str(tmp_path / 'a')).read(500)
    trees = [part.sequence(i).tobytes() for part in first.parts.values()
             for i in range(len(part.label))]
    assert len(trees) == len(set(trees)) == 720
    assert [len(first.parts[part].label) for part in PARTS] == [600, 60, 60]
    for part in PARTS:
        assert np.array_equal(first.parts[part].tokens, again.parts[part].tokens)
        assert not np.array_equal(first.parts[part].tokens, other.parts[part].tokens)
        lengths = np.diff(first.parts[part].ptr)
        assert 100 < lengths.min() and lengths.max() < 500


@pytest.mark.parametrize('options, match', [
    (dict(num_train=0), "'num_train' must"), (dict(max_args=1), "'max_args' must"),
    (dict(min_length=100, max_length=101), "'max_length' .*got 101"),
    (dict(seed=-1), "'seed' must"), (SMALL, "'max_length' .*got 498")])  # or one would be cut
def test_bad_arguments(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        GeneratedListOps(**options, cache=str(tmp_path)).read(498)


def test_too_few_trees_of_a_length_are_an_error(tmp_path):
    digits = GeneratedListOps(20, 1, 1, min_length=0, max_length=2, max_depth=1,
                              cache=str(tmp_path))
    with pytest.raises(ValueError, match="'min_length'.*10"):
        digits.read(10)
    assert not list(tmp_path.iterdir())
