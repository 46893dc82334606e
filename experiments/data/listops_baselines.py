"""Baselines for ListOps, which read only a few tokens of each tree.

    python -m experiments.data.listops_baselines
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable

import numpy as np

from experiments.data.listops import END, MIN, GeneratedListOps, apply
from experiments.data.sequences import Sequences
from experiments.runs.command_line import run_function

Glance = Callable[[np.ndarray], Hashable]


def glance_accuracies(learn: Sequences, test: Sequences) -> dict[str, float]:
    """Return the accuracies of baselines that know only a few tokens of each tree.

    A baseline guesses the most frequent value among the trees of ``learn`` in which these few
    tokens are the same.
    """
    return {name: _accuracy(glance, learn, test) for name, glance in GLANCES.items()}


def majority_accuracy(learn: Sequences, test: Sequences) -> float:
    """Return the accuracy on ``test`` of always guessing the most frequent class of ``learn``."""
    return float((test.label == np.bincount(learn.label).argmax()).mean())


def _accuracy(glance: Glance, learn: Sequences, test: Sequences) -> float:
    counts: defaultdict[Hashable, Counter] = defaultdict(Counter)
    for number, value in enumerate(learn.label.tolist()):
        counts[glance(learn.sequence(number))][value] += 1
    guess = {look: count.most_common(1)[0][0] for look, count in counts.items()}
    fallback = int(np.bincount(learn.label).argmax())
    guesses = [guess.get(glance(test.sequence(number)), fallback)
               for number in range(len(test.label))]
    return float((np.array(guesses) == test.label).mean())


def _root(tree: np.ndarray) -> Hashable:
    return int(tree[0])


def _first_argument(tree: np.ndarray) -> Hashable:
    first = int(tree[min(1, len(tree) - 1)])
    return int(tree[0]), min(first, MIN)  # all operators look alike


def _digits_of_root(tree: np.ndarray) -> Hashable:
    """Return what a baseline knows if it reads only the root of a tree and the digits directly
    below it, as a key of a dict.

    The key is the operator of the root, its value on these digits, and the number of its other
    arguments.
    """
    is_operator = (tree >= MIN) & (tree < END)
    level = np.cumsum(is_operator.astype(np.int64) - (tree == END))
    digits = tree[(level == 1) & (tree < MIN)].astype(np.int64)
    num_operators = int(((level == 2) & is_operator).sum())
    value = int(apply(int(tree[0]), digits)) if len(digits) and tree[0] >= MIN else None
    return int(tree[0]), value, num_operators


GLANCES: dict[str, Glance] = {
    'most frequent value': lambda tree: None,
    'root': _root,
    'root, first argument': _first_argument,
    'root, its digits': _digits_of_root,
}


def main(num_train: int = 96_000, seed: int = 0, cache: str = 'data/cache') -> None:
    """Print the accuracy of each baseline on the test trees.

    Args:
        num_train: Number of trees whose values are counted.
        seed: Seed of the trees.
        cache: The folder in which the trees are cached.
    """
    source = GeneratedListOps(num_train, seed=seed, cache=cache)
    parts = source.read(source.max_length).parts
    for name, accuracy in glance_accuracies(parts['train'], parts['test']).items():
        print(f'{name:<20} {accuracy:7.1%}')


if __name__ == '__main__':
    run_function(main)
