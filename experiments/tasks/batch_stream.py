"""The order of examples: resumable in training, and complete in testing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sized
from itertools import islice

import lightning as L
import numpy as np
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class ResumableLoader(DataLoader):
    """A data loader that resumes in the middle of an epoch. Its sampler must be from this module,
    because the sampler reads from the trainer how many batches are finished.

    Lightning creates the iterator before it reads the checkpoint, and the workers of other loaders
    would start at once. Here, workers start when the first batch is requested. The state of the
    loader is empty, which prevents a warning of Lightning.
    """

    def __iter__(self) -> Iterator:
        yield from super().__iter__()

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state_dict: dict) -> None:
        pass


class BatchStream(DistributedSampler):
    """The endless sequence of the training batches of a run.

    Batches are numbered over the whole run: batch g is batch ``g % len`` of epoch ``g // len``.

    An iteration yields the number of batches of one epoch, beginning with batch ``batches_done()``.
    Thus a run that resumes in the middle of an epoch neither repeats nor skips a batch.

    Each epoch has another order. It contains each example once over all processes, except for at
    most ``num_processes - 1`` examples that cannot be divided evenly in the last batch. The class
    is a DistributedSampler, so that Lightning does not divide its batches again.

    Args:
        num_examples (int): Number of examples of an epoch.
        batch_size (int): Number of examples per batch and process.
        num_processes (int): Number of training processes.
        rank (int): Rank of this process.
        seed (int): Seed of the orders.
        shuffle (bool): Whether to shuffle each epoch. If false, all epochs keep the order of the
            examples.
        batches_done (Callable): A function that returns the number of finished batches of the run.

    Raises:
        ValueError: There are fewer examples than processes.
    """

    def __init__(self, num_examples: int, batch_size: int, num_processes: int, rank: int, *,
                 seed: int, shuffle: bool, batches_done: Callable[[], int]):
        if num_examples < num_processes:
            raise ValueError(f"'corpus' must have at least {num_processes} sequences, one for each "
                             f"process (got {num_examples})")
        self.num_examples, self.batch_size = num_examples, batch_size
        self.num_processes, self.rank = num_processes, rank
        self.seed, self.shuffle, self.batches_done = seed, shuffle, batches_done

    def set_epoch(self, epoch: int) -> None:
        """Do nothing. Lightning passes the number of the epoch, but the epoch follows from
        ``batches_done``."""

    def __len__(self) -> int:
        whole, rest = divmod(self.num_examples, self.batch_size * self.num_processes)
        return whole + (rest >= self.num_processes)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        first = self.batches_done()
        epoch, order = -1, np.arange(0)
        for g in range(first, first + len(self)):
            if g // len(self) != epoch:
                epoch = g // len(self)
                order = self._order(epoch)
            begin = g % len(self) * self.batch_size * self.num_processes
            batch = order[begin:begin + self.batch_size * self.num_processes]
            own = batch[self.rank::self.num_processes]
            yield [(epoch if self.shuffle else 0, int(index)) for index in own]

    def _order(self, epoch: int) -> np.ndarray:
        order = np.arange(self.num_examples,
                          dtype=np.int32 if self.num_examples < 2**31 else np.int64)
        if self.shuffle:
            np.random.default_rng((self.seed, epoch)).shuffle(order)
        return order


class ShuffledEpochs(DistributedSampler):
    """A sampler that shuffles each epoch, by the seed of the run and the number of the epoch alone.

    An epoch that is resumed continues after its finished batches.

    Args:
        examples (Dataset): The examples to shuffle.
        batch_size (int): Number of examples per batch and process.
        trainer (Trainer): The trainer of the run.
    """

    def __init__(self, examples: Dataset, batch_size: int, trainer: L.Trainer):
        super().__init__(examples, trainer.world_size, trainer.global_rank, shuffle=True,
                         seed=int(os.environ.get('PL_GLOBAL_SEED', 0)))
        self.batch_size, self.trainer = batch_size, trainer

    def __iter__(self) -> Iterator[int]:
        return islice(super().__iter__(), batches_of_epoch(self.trainer) * self.batch_size, None)


def batches_of_epoch(trainer: L.Trainer) -> int:
    """Return the number of finished batches of the current training epoch."""
    return trainer.fit_loop.epoch_loop.batch_progress.current.processed


def batches_of_run(trainer: L.Trainer) -> int:
    """Return the number of finished training batches of the run."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed


def each_once(examples: Sized, trainer: L.Trainer | None) -> UnrepeatedDistributedSampler:
    """Return a sampler that yields every example once over all processes, in order.

    Without a trainer, there is one process.
    """
    processes, rank = (1, 0) if trainer is None else (trainer.world_size, trainer.global_rank)
    if len(examples) < processes:
        raise ValueError(f"'trainer.devices' must be at most the number of examples of each part "
                         f"(got {processes} processes for {len(examples)} examples); use fewer "
                         f"devices")
    return UnrepeatedDistributedSampler(examples, processes, rank, shuffle=False)
