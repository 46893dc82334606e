"""Baselines that predict a symbol from symbols near it: unigrams, n-grams and PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from experiments.data.sequences import Sequences


def ngram_bits(train: Sequence[np.ndarray], test: Sequence[np.ndarray], order: int,
               num_symbols: int = 256, both_sides: bool = False) -> float:
    r"""Return the bits per symbol of an n-gram model with Witten and Bell's interpolation.

    .. math::
        p_k(s \mid c) = \frac{n(c s) + t(c) \, p_{k-1}(s \mid c')}{n(c) + t(c)}

    Here c are the k symbols before s, and c' is c without the farthest symbol. n counts occurrences
    in the training sequences, and t(c) is the number of different symbols that follow c in them.
    :math:`p_{-1}` is uniform. Sequences are padded with an additional symbol.

    Source: Witten and Bell, "The zero-frequency problem" (1991), method C.
    """
    base = num_symbols + 1
    if order < 0 or num_symbols < 1 or base ** (order + 1) > 2**64:
        raise ValueError(f"'order' must be at least 0, 'num_symbols' at least 1, and (num_symbols "
                         f"+ 1) ** (order + 1) at most 2 ** 64 (got order={order} and "
                         f"num_symbols={num_symbols})")
    learn, asked = (_between_ends(sequences, order, num_symbols) for sequences in (train, test))
    if not asked[1].size:
        raise ValueError("'test' must contain at least one symbol")
    probability = np.full(asked[1].size, 1 / num_symbols)
    offsets = [(-1) ** (k + 1) * (k // 2 + 1) if both_sides else -(k + 1) for k in range(order)]
    for length in range(order + 1):
        context, whole = _numbers(*learn, offsets[:length], base)
        kinds, count = np.unique(whole, return_counts=True)
        contexts, first, different = np.unique(kinds // np.uint64(base), return_index=True,
                                               return_counts=True)
        total = np.add.reduceat(count, first)
        asked_context, asked_whole = _numbers(*asked, offsets[:length], base)
        n = _looked_up(kinds, count, asked_whole)
        n_context = _looked_up(contexts, total, asked_context)
        t = _looked_up(contexts, different, asked_context)
        known = n_context > 0
        probability[known] = ((n[known] + t[known] * probability[known])
                              / (n_context[known] + t[known]))
    return float(-np.log2(probability).mean())


def _between_ends(sequences: Sequence[np.ndarray], order: int,
                  num_symbols: int) -> tuple[np.ndarray, np.ndarray]:
    """Join sequences in one array with end symbols between them."""
    end = np.full(order, num_symbols, dtype=np.uint64)
    row = [end, *(part for sequence in sequences
                  for part in (np.asarray(sequence).astype(np.uint64), end))]
    own = [np.zeros(order, bool), *(part for sequence in sequences for part in (
        np.ones(len(sequence), bool), np.zeros(order, bool)))]
    return np.concatenate(row), np.flatnonzero(np.concatenate(own))


def _numbers(row: np.ndarray, places: np.ndarray, offsets: Sequence[int],
             base: int) -> tuple[np.ndarray, np.ndarray]:
    """Encode the symbols around some positions as numbers."""
    context = np.zeros(len(places), dtype=np.uint64)
    for distance in offsets:
        context = context * np.uint64(base) + row[places + distance]
    return context, context * np.uint64(base) + row[places]


def _looked_up(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    place = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    return np.where(keys[place] == asked, values[place], 0)


def png_bits(images: Sequences, shape: tuple[int, int, int]) -> float:
    """Return the number of bits per byte of images that are compressed as PNG.

    All images are stacked in one picture, so that the header of the file is negligible.
    """
    from PIL import Image

    rows, columns, colours = shape
    column = images.tokens.reshape(-1, columns, colours)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(column.squeeze(2) if colours == 1 else column)).save(
        file, 'PNG', optimize=True)
    return 8 * file.tell() / images.tokens.size


def sequences_of(part: Sequences) -> list[np.ndarray]:
    """Return a list of the sequences in a part of a data set."""
    return [part.sequence(number) for number in range(part.num_sequences)]
