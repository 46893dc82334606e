"""Detection of repeated tokens, a synthetic task that requires full attention."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from experiments.data.batch import TokenBatch
from experiments.tasks.synthetic import Synthetic


class Duplicates(Synthetic):
    """Sequences of random integers. The label of a token is 1 if the token occurs elsewhere in its
    sequence::

        tokens  1 4 3 7 3 2 3 1        each uniform in {1, ..., length}
        label   1 0 1 0 1 0 1 1        63.1 % ones at length 256

    The task is that of SBM-Transformer, Sec. 5.1. Arguments are those of :class:`Synthetic`.
    """

    def draw(self, rng: np.random.Generator) -> TokenBatch:
        tokens = torch.from_numpy(rng.integers(1, self.length + 1, (self.batch_size, self.length)))
        ptr = torch.arange(self.batch_size + 1) * self.length
        return TokenBatch(tokens.flatten(), ptr, occurs_twice(tokens).long().flatten())


def occurs_twice(tokens: Tensor) -> Tensor:
    """Return whether each token occurs more than once in its row, bool ``[num_rows, length]``."""
    count = torch.zeros(tokens.size(0), int(tokens.max()) + 1, dtype=torch.long)
    count.scatter_add_(1, tokens, torch.ones_like(tokens))
    return count.gather(1, tokens) > 1
