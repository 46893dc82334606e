"""The order of examples in training, which a resumed run takes up where it was, and in testing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sized
from itertools import islice

import lightning as L
import numpy as np
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class ResumableLoader(DataLoader):
    """Resumes within an epoch: its sampler, one of this file, asks the trainer how far it is.

    Lightning asks for an iterator before it has read the checkpoint, and workers would begin at
    once; so these begin with the first batch that is wanted. The empty state tells Lightning,
    which would warn otherwise, that all is in order.
    """

    def __iter__(self) -> Iterator:
        yield from super().__iter__()

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state_dict: dict) -> None:
        pass


class BatchStream(DistributedSampler):
    """The batches of a run in one endless row: batch g is number ``g % len`` of epoch ``g // len``.

    An iteration gives one epoch's number of batches from ``batches_done()`` on, so a run that
    resumes in the middle of an epoch neither repeats nor skips one. Each epoch has another order,
    and each example comes in it once, over all processes (but for at most ``num_processes - 1`` of
    them, where the last batch cannot give each process one). It is a DistributedSampler so that
    Lightning does not split its batches again.

    Args:
        num_examples (int): Examples of an epoch.
        batch_size (int): Examples per batch and process.
        num_processes (int): Processes that train.
        rank (int): Which of them this is.
        seed (int): Which orders.
        shuffle (bool): Otherwise all epochs are in the order of the examples, and alike.
        batches_done (Callable): How many batches of the run have been worked through.

    Raises:
        ValueError: There are fewer examples than processes.
    """

    def __init__(self, num_examples: int, batch_size: int, num_processes: int, rank: int, *,
                 seed: int, shuffle: bool, batches_done: Callable[[], int]):
        if num_examples < num_processes:
            raise ValueError(f"'corpus' must have a sequence for each of {num_processes} "
                             f"processes (got {num_examples})")
        self.num_examples, self.batch_size = num_examples, batch_size
        self.num_processes, self.rank = num_processes, rank
        self.seed, self.shuffle, self.batches_done = seed, shuffle, batches_done

    def set_epoch(self, epoch: int) -> None:
        """Ignore the epoch, which follows from ``batches_done``."""

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
    """Each epoch in an order that depends on the run's seed and the epoch alone.

    An epoch that is resumed goes on behind the batches that are done.

    Args:
        examples (Dataset): What is shuffled.
        batch_size (int): Examples per batch and process.
        trainer (Trainer): Whose run it is.
    """

    def __init__(self, examples: Dataset, batch_size: int, trainer: L.Trainer):
        super().__init__(examples, trainer.world_size, trainer.global_rank, shuffle=True,
                         seed=int(os.environ.get('PL_GLOBAL_SEED', 0)))
        self.batch_size, self.trainer = batch_size, trainer

    def __iter__(self) -> Iterator[int]:
        return islice(super().__iter__(), batches_of_epoch(self.trainer) * self.batch_size, None)


def batches_of_epoch(trainer: L.Trainer) -> int:
    """Count the finished batches of the training epoch."""
    return trainer.fit_loop.epoch_loop.batch_progress.current.processed


def batches_of_run(trainer: L.Trainer) -> int:
    """Count the finished batches of the run."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed


def each_once(examples: Sized, trainer: L.Trainer | None) -> UnrepeatedDistributedSampler:
    """Over all processes every example once, in order; without a trainer there is one process.

    Raises:
        ValueError: There are fewer examples than processes.
    """
    processes, rank = (1, 0) if trainer is None else (trainer.world_size, trainer.global_rank)
    if len(examples) < processes:
        raise ValueError(f"'trainer.devices' must be at most the examples of each part (got "
                         f"{processes} processes for {len(examples)} examples)")
    return UnrepeatedDistributedSampler(examples, processes, rank, shuffle=False)
