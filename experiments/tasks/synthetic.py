"""Tasks with generated sequences: their base class, repeated tokens, and planted distances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from experiments.data.batch import NO_LABEL, TokenBatch
from experiments.tasks.batch_stream import ResumableLoader, batches_of_epoch

CLS, SEP, FIRST = 0, 1, 2  # ids of Planted


class Synthetic(L.LightningDataModule, ABC):
    """Base class of tasks whose sequences are generated.

    Training batches are new in every epoch. Development and test batches are fixed.

    Args:
        length (int): Number of tokens per sequence.
        batch_size (int): Number of sequences per step and process.
        steps_per_epoch (int): Number of training batches between evaluations.
        eval_batches (int): Number of batches for development, and for testing.
        seed (int): Seed of the sequences.
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
    """A sampler of indices that no earlier epoch and no other process has used."""

    # A resumed epoch continues after its finished batches. Lightning divides the indices of other
    # samplers than DistributedSamplers again.

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


class Planted(Synthetic):
    """Random tokens, each labelled by the sign of a sum over tokens at certain distances::

        tokens  [CLS]  x_1  x_2  ...  x_i  ...  [SEP]       each of num_symbols symbols
        label     -                    1 if sum over d of v(x_{i-d}) + v(x_{i+d}) > 0 else 0

    The value v of each symbol is drawn once from a normal distribution, and the values are centred.
    Neighbours beyond the ends count as 0. A head that attends with equal weights to exactly these
    distances can compute the label. All other keys are noise. [CLS] and [SEP] have no label.

    Args:
        distances (list of int): The planted distances d.
        num_symbols (int): Number of symbols, besides [CLS] and [SEP].
        **kwargs: Arguments of :class:`Synthetic`.
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
