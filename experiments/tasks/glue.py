"""GLUE's tasks: sentences and pairs of sentences, encoded, cut and batched."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from experiments.data.batch import NO_LABEL, TextBatch
from experiments.data.text.document_files import Document
from experiments.data.text.glue_files import TASKS, read_rows, read_test_rows
from experiments.data.text.tokenizer import load_tokenizer
from experiments.data.what_was_read import tell_of_cuts
from experiments.tasks.batch_stream import ResumableLoader, ShuffledEpochs, each_once
from experiments.tasks.documents import EncodedDocuments

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Glue(L.LightningDataModule):
    """A GLUE task, from the folder of ``.tsv`` files that GLUE distributes::

        index  sentence1                sentence2              label
        0      No weapons were found.   Weapons were found.    not_entailment

        tokens    [CLS] no weapons were found . [SEP] weapons were found . [SEP]
        segments      0  0       0    0     0 0     0       1    1     1 1     1

    The labels of the test sets are not public, so the development sets are used for testing.

    Args:
        path (str): The folder of the task, with ``train.tsv`` and ``dev.tsv``. MNLI has
            ``dev_matched.tsv`` and ``dev_mismatched.tsv`` instead of the latter.
        task (str): One of ``TASKS``: MNLI, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE.
        tokenizer (str, optional): A tokenizer.json, a vocab.txt, or a folder or name of Hugging
            Face's. If omitted, the tokenizer of the pre-trained model.
        batch_size (int): Number of examples per step and process.
        max_length (int): Maximum number of tokens of an example. In a pair, the longer sentence is
            cut first, as in BERT.
    """

    def __init__(self, path: str, task: str, tokenizer: str | None = None, batch_size: int = 32,
                 max_length: int = 128):
        super().__init__()
        if task not in TASKS:
            raise ValueError(f"'task' must be one of {', '.join(TASKS)} (got {task!r})")
        if batch_size < 1:
            raise ValueError(f"'batch_size' must be positive (got {batch_size})")
        num_special = len(TASKS[task].text) + 1
        if max_length <= num_special:
            raise ValueError(f"'max_length' must be more than {num_special}, the number of special "
                             f"tokens (got {max_length})")
        self.path, self.task, self.tokenizer_path = Path(path), task, tokenizer
        self.batch_size, self.max_length = batch_size, max_length
        self.sets: dict[str, Examples] = {}

    @property
    def classes(self) -> list[str]:
        """Return the names of the classes in order; none if the task predicts a score."""
        return list(TASKS[self.task].classes)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.load_tokenizer()

    def load_tokenizer(self) -> Tokenizer:
        """Load the tokenizer that was given, or else the tokenizer of the pre-trained model."""
        return load_tokenizer(self.tokenizer_path or self.trainer.lightning_module.tokenizer_path)

    def setup(self, stage: str | None = None) -> None:
        task = TASKS[self.task]
        names = [*(['train'] if stage in (None, 'fit') else []), *task.dev]
        rows = {name: list(read_rows(self.path / f'{name}.tsv', task))
                for name in names if name not in self.sets}
        for name, examples in rows.items():
            self.sets[name] = Examples(examples, self.tokenizer, self.max_length,
                                       f'{self.task} {name}')

    def train_dataloader(self) -> DataLoader:
        train = self.sets['train']
        return ResumableLoader(train, self.batch_size, collate_fn=collate,
                               sampler=ShuffledEpochs(train, self.batch_size, self.trainer))

    def val_dataloader(self) -> list[DataLoader]:
        """Return a loader for each development set. Each loader yields every example exactly once
        over all processes."""
        return [DataLoader(self.sets[name], 2 * self.batch_size, collate_fn=collate,
                           sampler=each_once(self.sets[name], self.trainer))
                for name in TASKS[self.task].dev]

    def test_dataloader(self) -> list[DataLoader]:
        return self.val_dataloader()

    def unlabelled(self, path: Path, size: int) -> Iterator[tuple[list[str], TextBatch]]:
        """Yield batches of ``size`` rows of a test set with the numbers of the rows. The file is as
        GLUE distributes it."""
        rows = read_test_rows(path, TASKS[self.task])
        bar, num_cut = tqdm(desc=path.stem, unit=' rows', disable=None), 0
        while some := list(islice(rows, size)):
            numbers, texts = zip(*some)
            examples = Examples([Document(text, NO_LABEL) for text in texts], self.tokenizer,
                                self.max_length, path.stem)
            yield list(numbers), collate([examples[i] for i in range(len(examples))])
            bar.update(len(some))
            num_cut += examples.num_cut
        tell_of_cuts(path, num_cut, 'row', self.max_length)


class Examples(EncodedDocuments):
    """The encoded rows of a GLUE task: tokens, the length of the first segment, and the label."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens, label = super().__getitem__(index)
        return tokens, self.first[index], label


def collate(examples: list[tuple[Tensor, Tensor, Tensor]]) -> TextBatch:
    """Return a batch of examples as concatenated sequences. No tokens are selected for
    prediction."""
    tokens, first, label = zip(*examples)
    segments = [(torch.arange(len(ids)) >= length).long() for ids, length in zip(tokens, first)]
    ptr = torch.tensor([0, *(len(ids) for ids in tokens)]).cumsum(0)
    nothing = ptr.new_empty(0)
    return TextBatch(torch.cat(tokens), ptr, torch.cat(segments), nothing, nothing,
                     torch.stack(label))
