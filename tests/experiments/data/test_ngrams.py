"""N-grams against their formula written out, and what PNG makes of images."""

import math
from collections import Counter

import numpy as np
import pytest

from experiments.data.ngrams import ngram_bits, png_bits
from experiments.data.sequences import Sequences

TRAIN = [np.array([0, 1, 2, 0, 1, 2, 2]), np.array([1]), np.array([0, 1, 1, 0])]
TEST = [np.array([0, 1, 2, 1, 3]), np.array([2, 2])]


def by_hand(order, num_symbols=4):
    """One symbol after the other; -1 stands before a sequence."""
    counts = [Counter() for _ in range(order + 1)]
    for sequence in TRAIN:
        row = [-1] * order + sequence.tolist()
        for place in range(order, len(row)):
            for length in range(order + 1):
                counts[length][tuple(row[place - length:place]), row[place]] += 1
    bits = []
    for sequence in TEST:
        row = [-1] * order + sequence.tolist()
        for place in range(order, len(row)):
            p = 1 / num_symbols
            for length in range(order + 1):
                context = tuple(row[place - length:place])
                follow = {s: n for (c, s), n in counts[length].items() if c == context}
                if follow:
                    total, kinds = sum(follow.values()), len(follow)
                    p = (follow.get(row[place], 0) + kinds * p) / (total + kinds)
            bits.append(-math.log2(p))
    return np.mean(bits)


@pytest.mark.parametrize('order', range(7))
def test_bits_are_those_of_the_formula(order):
    assert ngram_bits(TRAIN, TEST, order, 4) == pytest.approx(by_hand(order))


def test_bytes_of_all_values_are_told_apart():
    everything = [np.arange(256, dtype=np.uint8)] * 3
    assert ngram_bits(everything, everything, 0) == pytest.approx(8.)
    assert ngram_bits(everything, everything, 6) < 1.


@pytest.mark.parametrize('order, num_symbols, test, match', [
    (7, 4, TEST, "'order' must be from 0 to 6"), (-1, 4, TEST, "'order' must be from 0 to 6"),
    (2, 257, TEST, "'num_symbols' from 1 to 256"), (2, 4, [], "'test' must hold a symbol")])
def test_bad_numbers_are_refused(order, num_symbols, test, match):
    with pytest.raises(ValueError, match=match):
        ngram_bits(TRAIN, test, order, num_symbols)


@pytest.mark.parametrize('shape', [(8, 8, 1), (4, 4, 3)])
def test_png_takes_all_bits_of_noise_and_hardly_any_of_nothing(shape):
    length = math.prod(shape)
    noise = np.random.default_rng(0).integers(0, 256, (500, length)).astype(np.uint8)
    bits = [png_bits(Sequences.of_equal_length(images, np.zeros(500)), shape)
            for images in (noise, np.zeros_like(noise))]
    assert 8. < bits[0] < 9.1 and bits[1] < .2
