"""The base class of tasks with generated sequences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import lightning as L
import numpy as np
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from experiments.data.batch import TokenBatch
from experiments.tasks.batch_stream import ResumableLoader, batches_of_epoch


class Synthetic(L.LightningDataModule, ABC):
    """Base class of tasks whose sequences are generated.

    Training batches are new in every epoch. Development and test batches are fixed.

    Args:
        length (int): Number of tokens per sequence.
        batch_size (int): Number of sequences per step and process.
        steps_per_epoch (int): Number of training batches between evaluations.
        eval_batches (int): Number of batches for development, and for testing.
        seed (int): Seed of the sequences.

    Raises:
        ValueError: A size is not positive.
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

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> TokenBatch:
        """Draw a batch of ``batch_size`` sequences. Subclasses implement this method."""

    def train_dataloader(self) -> DataLoader:
        return ResumableLoader(self._batches('train', 2**62), batch_size=None,
                               sampler=_FreshIndices(self.steps_per_epoch, self.trainer))

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self._batches('val', self.eval_batches), batch_size=None)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self._batches('test', self.eval_batches), batch_size=None)

    def _batches(self, split: str, number: int) -> _Batches:
        return _Batches(self, number, (self.seed, ('train', 'val', 'test').index(split)))


class _Batches(Dataset):
    def __init__(self, task: Synthetic, number: int, seed: tuple[int, ...]):
        self.task, self.number, self.seed = task, number, seed

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> TokenBatch:
        return self.task.draw(np.random.default_rng((*self.seed, index)))


class _FreshIndices(DistributedSampler):
    """A sampler of indices that no earlier epoch and no other process has used.

    A resumed epoch continues after its finished batches. The class is a DistributedSampler, so that
    Lightning does not divide its indices again.
    """

    def __init__(self, steps: int, trainer: L.Trainer):
        self.steps, self.trainer, self.epoch = steps, trainer, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[int]:
        first = self.epoch * self.steps
        return (self.trainer.world_size * step + self.trainer.global_rank
                for step in range(first + batches_of_epoch(self.trainer), first + self.steps))
