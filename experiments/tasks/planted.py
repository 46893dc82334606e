"""A synthetic task whose labels depend on neighbours at known distances, which a learned mask must
find."""

from __future__ import annotations

import numpy as np
import torch

from experiments.data.batch import NO_LABEL, TokenBatch
from experiments.tasks.synthetic import Synthetic

CLS, SEP, FIRST = 0, 1, 2


class Planted(Synthetic):
    r"""Random tokens, each labelled by the sign of a sum over tokens at certain distances::

        tokens  [CLS]  x_1  x_2  ...  x_i  ...  [SEP]       each of num_symbols symbols
        label     -                    1 if sum over d of v(x_{i-d}) + v(x_{i+d}) > 0 else 0

    The value v of each symbol is drawn once from a normal distribution, and the values are centred.
    Neighbours beyond the ends count as 0. A head that attends with equal weights to exactly these
    distances can compute the label. All other keys are noise. [CLS] and [SEP] have no label.

    Args:
        distances (list of int): The planted distances d.
        num_symbols (int): Number of symbols, besides [CLS] and [SEP].
        **kwargs: Arguments of :class:`Synthetic`.

    Raises:
        ValueError: There is no distance, or a distance outside 1 to ``length - 3``.
    """

    def __init__(self, distances: list[int], num_symbols: int = 32, **kwargs):
        super().__init__(**kwargs)
        if not distances or not all(1 <= d <= self.length - 3 for d in distances):
            raise ValueError(f"'distances' must be from 1 to {self.length - 3}, so that both "
                             f"planted tokens lie inside a sequence of {self.length} tokens (got "
                             f"{distances})")
        if num_symbols < 2:
            raise ValueError(f"'num_symbols' must be at least 2 (got {num_symbols})")
        self.distances, self.num_symbols = distances, num_symbols
        value = np.random.default_rng((self.seed, 3)).normal(size=num_symbols)
        value -= value.mean()  # centred, so that half of the labels are 1
        self.value = np.concatenate([np.zeros(FIRST), value])  # [CLS] and [SEP] have value 0

    def draw(self, rng: np.random.Generator) -> TokenBatch:
        tokens = rng.integers(FIRST, FIRST + self.num_symbols, (self.batch_size, self.length))
        tokens[:, 0], tokens[:, -1] = CLS, SEP
        value = self.value[tokens]
        total = np.zeros_like(value)
        for d in self.distances:
            total[:, d:] += value[:, :-d]
            total[:, :-d] += value[:, d:]
        label = (total > 0).astype(np.int64)
        label[:, [0, -1]] = NO_LABEL
        ptr = torch.arange(self.batch_size + 1) * self.length
        tokens, label = map(torch.from_numpy, (tokens, label))
        return TokenBatch(tokens.flatten(), ptr, label.flatten())
