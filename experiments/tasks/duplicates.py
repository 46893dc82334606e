"""Finding repeated tokens: the synthetic task that needs full attention."""

from __future__ import annotations

from collections.abc import Iterator

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from experiments.classification import Batch


class Duplicates(L.LightningDataModule):
    """Sequences of random integers; a token is 1 if it occurs elsewhere in its sequence::

        tokens  1 4 3 7 3 2 3 1        each uniform in {1, ..., length}
        label   1 0 1 0 1 0 1 1        63.1 % ones at length 256

    (SBM-Transformer, Sec. 5.1.) Every training batch is fresh; those for development and testing
    are always the same.

    Args:
        length (int): Tokens per sequence, and number of different integers.
        batch_size (int): Sequences per step and process.
        steps_per_epoch (int): Training batches between two evaluations.
        eval_batches (int): Batches for development, and for testing.
        seed (int): Which sequences.
    """

    def __init__(self, length: int = 256, batch_size: int = 256, steps_per_epoch: int = 100,
                 eval_batches: int = 4, seed: int = 0):
        super().__init__()
        for name, size in (('length', length), ('batch_size', batch_size),
                           ('steps_per_epoch', steps_per_epoch), ('eval_batches', eval_batches)):
            if size < 1:
                raise ValueError(f"'{name}' must be positive (got {size})")
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.steps_per_epoch, self.eval_batches = steps_per_epoch, eval_batches

    def train_dataloader(self) -> DataLoader:
        sampler = _FreshIndices(self.steps_per_epoch, self.trainer.world_size,
                                self.trainer.global_rank)
        return DataLoader(self._batches('train', 2**62), batch_size=None, sampler=sampler)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self._batches('val', self.eval_batches), batch_size=None)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self._batches('test', self.eval_batches), batch_size=None)

    def _batches(self, split: str, number: int) -> _Batches:
        return _Batches(self.length, self.batch_size, number,
                        (self.seed, ('train', 'val', 'test').index(split)))


class _Batches(Dataset):
    def __init__(self, length: int, batch_size: int, number: int, seed: tuple[int, ...]):
        self.length, self.batch_size, self.number, self.seed = length, batch_size, number, seed

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Batch:
        rng = np.random.default_rng((*self.seed, index))
        tokens = torch.from_numpy(rng.integers(1, self.length + 1, (self.batch_size, self.length)))
        ptr = torch.arange(self.batch_size + 1) * self.length
        return Batch(tokens.flatten(), ptr, occurs_twice(tokens).long().flatten())


def occurs_twice(tokens: torch.Tensor) -> torch.Tensor:
    """Which tokens of each row occur more than once, bool ``[num_rows, length]``."""
    count = torch.zeros(tokens.size(0), int(tokens.max()) + 1, dtype=torch.long)
    count.scatter_add_(1, tokens, torch.ones_like(tokens))
    return count.gather(1, tokens) > 1


class _FreshIndices(Sampler):
    """Indices that no earlier epoch and no other process has used."""

    def __init__(self, steps: int, num_processes: int, rank: int):
        self.steps, self.num_processes, self.rank, self.epoch = steps, num_processes, rank, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[int]:
        first = self.epoch * self.steps
        return (self.num_processes * step + self.rank
                for step in range(first, first + self.steps))
