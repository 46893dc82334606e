"""N-grams against their formula written out, and what PNG makes of images."""

import math
from collections import Counter

import numpy as np
import pytest

from experiments.data.ngrams import ngram_bits, png_bits
from experiments.data.sequences import Sequences

TRAIN = [np.array([0, 1, 2, 0, 1, 2, 2]), np.array([1]), np.array([0, 1, 1, 0])]
TEST = [np.array([0, 1, 2, 1, 3]), np.array([2, 2])]


def by_hand(order, both_sides, num_symbols=4):
    """One symbol after the other; -1 stands around a sequence."""
    distances = [-1, 1, -2, 2, -3, 3] if both_sides else [-1, -2, -3, -4, -5, -6]

    def contexts(sequence):
        row = [-1] * 6 + sequence.tolist() + [-1] * 6
        for place in range(6, len(row) - 6):
            yield row[place], [tuple(row[place + distance] for distance in distances[:length])
                               for length in range(order + 1)]

    counts = [Counter() for _ in range(order + 1)]
    for sequence in TRAIN:
        for symbol, around in contexts(sequence):
            for length, context in enumerate(around):
                counts[length][context, symbol] += 1
    bits = []
    for sequence in TEST:
        for symbol, around in contexts(sequence):
            p = 1 / num_symbols
            for length, context in enumerate(around):
                follow = {s: n for (c, s), n in counts[length].items() if c == context}
                if follow:
                    total, kinds = sum(follow.values()), len(follow)
                    p = (follow.get(symbol, 0) + kinds * p) / (total + kinds)
            bits.append(-math.log2(p))
    return np.mean(bits)


@pytest.mark.parametrize('both_sides', [False, True])
@pytest.mark.parametrize('order', range(7))
def test_bits_are_those_of_the_formula(order, both_sides):
    assert ngram_bits(TRAIN, TEST, order, 4, both_sides) == pytest.approx(
        by_hand(order, both_sides))


@pytest.mark.parametrize('order, num_symbols, test, match', [
    (-1, 4, TEST, "'order' must .*got order=-1"), (2, 0, TEST, "'num_symbols' .*=0"),
    (7, 256, TEST, "most 2 .. 64 .got.*256"), (2, 4, [], "'test' must contain")])
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
