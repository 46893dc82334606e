"""The order of examples: resumable in training, and complete in testing."""

import os
from collections.abc import Callable, Iterator, Sized
from itertools import islice
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCHES_IN_BUCKET = 32


class ResumableLoader(DataLoader):
    """A data loader that resumes in the middle of an epoch, by a sampler of this module."""

    def __iter__(self) -> Iterator:
        # Lightning creates the iterator before it reads the checkpoint. A generator starts workers
        # when the first batch is requested.
        yield from super().__iter__()

    def state_dict(self) -> dict:
        return {}  # without this method, Lightning warns

    def load_state_dict(self, state_dict: dict) -> None:
        pass


class Batches(Dataset):
    """A data set that maps a list of (epoch, index) to a batch of these examples."""

    def __init__(self, make: Callable[[list[int]], Any]):
        self.make = make

    def __getitem__(self, keys: list[tuple[int, int]]) -> Any:
        return self.make([index for _, index in keys])


class BatchStream(DistributedSampler):
    """The endless training batches of a run; batch g is batch ``g % len`` of epoch ``g // len``."""

    # An iteration yields the number of batches of one epoch, beginning with batch
    # ``batches_done()``. Thus a run that resumes in the middle of an epoch neither repeats nor
    # skips a batch. Each epoch contains each example once over all processes, except for at most
    # ``num_processes - 1`` that cannot be divided evenly in the last batch. The class is a
    # DistributedSampler, so that Lightning does not divide its batches again.

    def __init__(self, num_examples: int, batch_size: int, num_processes: int, rank: int, *,
                 seed: int, shuffle: bool, batches_done: Callable[[], int],
                 lengths: np.ndarray | None = None):
        if num_examples < num_processes:
            raise ValueError(f"'corpus' must have at least {num_processes} sequences, one for each "
                             f"process (got {num_examples})")
        self.num_examples, self.batch_size = num_examples, batch_size
        self.num_processes, self.rank = num_processes, rank
        self.seed, self.shuffle, self.batches_done = seed, shuffle, batches_done
        self.lengths = lengths  # of examples, so that each batch has some of similar length

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, because the epoch follows from ``batches_done``."""

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
        return order if self.lengths is None else self._by_length(order, epoch)

    def _by_length(self, order: np.ndarray, epoch: int) -> np.ndarray:
        # Pieces of a few batches are sorted by length, and then the batches are shuffled. So no
        # process waits while another computes longer documents.
        size = self.batch_size * self.num_processes
        whole = len(order) - len(order) % size
        bucket = BATCHES_IN_BUCKET * size
        pieces = [order[begin:min(begin + bucket, whole)] for begin in range(0, whole, bucket)]
        by_length = [piece[np.argsort(self.lengths[piece], kind='stable')] for piece in pieces]
        batches = np.concatenate([*by_length, order[:0]]).reshape(-1, size)
        np.random.default_rng((self.seed, epoch, size)).shuffle(batches)
        return np.concatenate([batches.ravel(), order[whole:]])


class StreamedTask(L.LightningDataModule):
    """Base class of tasks whose training can resume at any batch, with any number of workers."""

    batch_size: int
    seed: int
    max_length: int
    num_workers = 0

    def check_model(self, model: nn.Module) -> None:
        """Raise an error if a model does not fit the data, before anything is written."""
        positions = model.encoder.position_embedding.num_embeddings
        if self.max_length > positions:
            raise ValueError(f"'max_length' must be at most {positions}, the number of positions "
                             f"of the model (got {self.max_length})")

    def streamed(self, batches: Dataset, num_examples: int, *, is_training: bool = True,
                 lengths: np.ndarray | None = None, **options: Any) -> ResumableLoader:
        """Return a loader of training batches, which are numbered over the whole run, or of
        examples in their order."""
        sampler = BatchStream(num_examples, self.batch_size, self.trainer.world_size,
                              self.trainer.global_rank, seed=self.seed, shuffle=is_training,
                              lengths=lengths, batches_done=lambda: (
                                  batches_of_run(self.trainer) if is_training else 0))
        return ResumableLoader(batches, batch_size=None, sampler=sampler,
                               num_workers=self.num_workers, **options)

    def longest_first(self, make: Callable[[list[int]], Any], lengths: np.ndarray) -> DataLoader:
        """Return a loader that yields every example once over all processes, the longest first, so
        that the first batch fails if memory does not suffice."""
        order = np.argsort(-lengths, kind='stable').tolist()
        return DataLoader(order, self.batch_size, sampler=each_once(order, self.trainer),
                          collate_fn=make)

    def in_order(self, part: str) -> DataLoader:
        """Return a loader of the part ``'dev'`` or ``'test'``."""
        raise NotImplementedError

    def val_dataloader(self) -> DataLoader:
        return self.in_order('dev')

    def test_dataloader(self) -> DataLoader:
        return self.in_order('test')


class ShuffledEpochs(DistributedSampler):
    """Shuffle each epoch by the seed of the run and its number, and continue a resumed epoch."""

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
    """Return a sampler that yields every example once over all processes, in order."""
    processes, rank = (1, 0) if trainer is None else (trainer.world_size, trainer.global_rank)
    if len(examples) < processes:
        raise ValueError(f"'trainer.devices' must be at most the number of examples of each part "
                         f"(got {processes} processes for {len(examples)} examples); use fewer "
                         f"devices")
    return UnrepeatedDistributedSampler(examples, processes, rank, shuffle=False)
