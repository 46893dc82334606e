"""Classification of long sequences: the tasks of Long Range Arena, and stand-ins."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader

from experiments.data.batch import NO_LABEL, TokenBatch
from experiments.data.sequences import (
    PARTS,
    SequenceData,
    Sequences,
    SequenceSource,
    check_at_least,
)
from experiments.data.what_was_read import tell_of_cuts
from experiments.tasks.batch_stream import Batches, StreamedTask
from graphattn.models import CausalLanguageModel


class LongRange(StreamedTask):
    """Sequences of up to thousands of symbols, or pairs of such sequences, each with a class::

        tokens    [MAX 2 9 [MIN 4 7 ] 0 ]      the grey levels of an image      the bytes of a text
        label     9                            horse                            favourable

    Sequences longer than ``max_length`` are cut at the end. The training order depends only on
    (``seed``, epoch). Every example of the other parts is read once.

    Args:
        source (SequenceSource): The source of the sequences.
        max_length (int): Maximum number of tokens of a sequence, [CLS] included.
        cls (bool): Whether to prepend an additional symbol, [CLS], to each sequence.
        batch_size (int): Number of examples per step and process.
        seed (int): Seed of the training order.
    """

    def __init__(self, source: SequenceSource, max_length: int, cls: bool = False,
                 batch_size: int = 32, seed: int = 0):
        super().__init__()
        check_at_least(1 + cls, max_length=max_length)
        check_at_least(1, batch_size=batch_size)
        check_at_least(0, seed=seed)
        self.source, self.max_length, self.cls = source, max_length, cls
        self.batch_size, self.seed = batch_size, seed
        self.data: SequenceData | None = None
        self.classes: list[str] | None = None  # set from a checkpoint, if there is one

    def state_dict(self) -> dict:
        classes = self.read().classes
        return {} if classes is None else {'classes': list(classes)}

    def load_state_dict(self, state_dict: dict) -> None:
        self.classes = state_dict['classes']

    def prepare_data(self) -> None:
        self.check_model(self.trainer.lightning_module.model)

    def check_model(self, model: nn.Module) -> None:
        data = self.read()
        super().check_model(model)
        num_tokens = model.encoder.token_embedding.num_embeddings
        if num_tokens < data.num_tokens + self.cls:
            raise ValueError(f"'num_tokens' of the encoder must be at least "
                             f"{data.num_tokens + self.cls}, the number of symbols of {data.about} "
                             f"(got {num_tokens})")
        if isinstance(model, CausalLanguageModel):
            return  # not a classifier
        if model.num_classes != data.num_classes:
            raise ValueError(f"'num_classes' of the model must be {data.num_classes}, the number "
                             f"of classes of {data.about} (got {model.num_classes})")
        width = data.parts['train'].sequences_per_example
        if width != model.sequences_per_example:
            kind = ('SequenceClassifier', 'PairClassifier')[width - 1]
            raise ValueError(f"'model' must be a {kind} for {data.about} (got "
                             f"{type(model).__name__})")

    def setup(self, stage: str | None = None) -> None:
        self.read()

    def train_dataloader(self) -> DataLoader:
        return self.streamed(Batches(partial(self._batch, 'train')),
                             len(self.data.parts['train'].label))

    def in_order(self, part: str) -> DataLoader:
        sequences = self.data.parts[part]
        length = np.diff(sequences.ptr).reshape(len(sequences.label), -1).sum(axis=1)
        return self.longest_first(partial(self._batch, part), length)

    def _batch(self, part: str, numbers: list[int]) -> TokenBatch:
        return collate(self.data.parts[part].take(np.array(numbers)), self._cls_token)

    def unlabelled(self, path: Path, size: int) -> Iterator[tuple[list[str], TokenBatch]]:
        """Yield batches of ``size`` unlabelled examples of a file with their names, in the order of
        the file."""
        longest, num_cut = self.max_length - self.cls, 0

        def rows() -> Iterator[tuple[str, list[np.ndarray]]]:
            nonlocal num_cut
            for name, sequences in self.source.unlabelled(path):
                num_cut += any(len(ids) > longest for ids in sequences)
                yield name, [ids[:longest] for ids in sequences]

        yield from unlabelled_batches(rows(), size, self._cls_token)
        tell_of_cuts(path, num_cut, 'example', longest)

    @property
    def _cls_token(self) -> int | None:
        return self.read().num_tokens if self.cls else None

    def read(self) -> SequenceData:
        """Return all sequences of the task. They are read once and then kept."""
        if self.data is None:
            data = self.source.read(self.max_length - self.cls)
            if empty := [part for part in PARTS if not len(data.parts[part].label)]:
                raise ValueError(f"'source' must have examples in each of {', '.join(PARTS)} (got "
                                 f"none in {empty[0]} of {data.about})")
            self.data = data
            describe(data)
        return self.data


def collate(some: Sequences, cls_token: int | None = None) -> TokenBatch:
    """Return some sequences as a batch. If ``cls_token`` is given, it is put before each
    sequence."""
    tokens, ptr = some.tokens.astype(np.int64), some.ptr
    if cls_token is not None:
        tokens = np.insert(tokens, ptr[:-1], cls_token)
        ptr = ptr + np.arange(len(ptr))
    return TokenBatch(*map(torch.from_numpy, (tokens, ptr, some.label)))


def unlabelled_batches(rows: Iterator[tuple[str, Iterable[np.ndarray]]], size: int,
                       cls_token: int | None = None) -> Iterator[tuple[list[str], TokenBatch]]:
    """Yield batches of ``size`` unlabelled examples, with their names."""
    while some := list(islice(rows, size)):
        names, examples = zip(*some)
        yield list(names), collate(Sequences.of(chain.from_iterable(examples),
                                                [NO_LABEL] * len(names)), cls_token)


@rank_zero_only
def describe(data: SequenceData) -> None:
    print(data.about)
    for part in PARTS:
        sequences = data.parts[part]
        length = np.diff(sequences.ptr)
        share = np.bincount(sequences.label, minlength=data.num_classes) / len(sequences.label)
        print(f'{part:<5} {len(sequences.label):>7,} examples of {data.num_classes} classes, the '
              f'largest {share.max():.1%}; tokens: median {np.median(length):,.0f}, longest '
              f'{length.max():,}')
