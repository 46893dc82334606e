"""Classification of long documents."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.utils.data import Dataset

from experiments.data.batch import NO_LABEL, TokenBatch
from experiments.data.text.document_files import PARTS, Collection, Document, DocumentSource
from experiments.data.text.text_table import read_texts
from experiments.data.text.tokenizer import cut, encoded, framed, special_tokens
from experiments.data.what_was_read import tell_of_cuts
from experiments.tasks.tokenized import TokenizedTask, spread_of_lengths

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NUM_SPECIAL = 2


class Documents(TokenizedTask):
    """Documents of hundreds to thousands of tokens. Each document has a class::

        tokens    [CLS] it was the best of times , ... far better rest [SEP]
        label     negative

    Documents longer than ``max_length`` tokens are cut, and their number is printed. In a pair,
    [CLS] a [SEP] b [SEP], the longer text is cut first. A training batch consists of documents of
    similar length. The order of the batches depends only on (``seed``, epoch).

    Args:
        documents (DocumentSource): The source of the documents.
        max_length (int): Maximum number of tokens of a document, [CLS] and [SEP] included.
        batch_size (int): Number of documents per step and process.
        **kwargs: Arguments of :class:`experiments.tasks.tokenized.TokenizedTask`.
    """

    shortest = NUM_SPECIAL + 1

    def __init__(self, documents: DocumentSource, max_length: int = 4096, batch_size: int = 8,
                 **kwargs):
        super().__init__(max_length, batch_size, **kwargs)
        self.documents = documents
        self.classes: list[str] | None = None  # set from a checkpoint, if there is one

    @cached_property
    def collection(self) -> Collection:
        collection = self.documents.read()
        for part in PARTS:
            if not collection.parts[part]:
                raise ValueError(f"'documents' must have documents in each of {', '.join(PARTS)} "
                                 f"(got none in {part})")
        learnt = {document.label for document in collection.parts['train']}
        for label, name in enumerate(collection.classes):
            if label not in learnt:
                raise ValueError(f"'documents' must have training documents of each class (got "
                                 f"none of {name!r})")
        return collection

    def state_dict(self) -> dict:
        return {'classes': list(self.collection.classes)}

    def load_state_dict(self, state_dict: dict) -> None:
        self.classes = state_dict['classes']

    def texts(self) -> Iterable[str]:
        return (text for document in self.collection.parts['train'] for text in document.texts)

    def check_model(self, model: nn.Module) -> None:
        super().check_model(model)
        if model.num_classes != len(self.collection.classes):
            raise ValueError("'num_classes' of the model must be "
                             f"{len(self.collection.classes)}, the number of classes of the "
                             f"documents (got {model.num_classes})")

    def setup(self, stage: str | None = None) -> None:
        tokenizer = self.load_tokenizer()
        for part in PARTS if stage in (None, 'fit') else PARTS[1:]:
            if part not in self.sets:
                self.sets[part] = EncodedDocuments(self.collection.parts[part], tokenizer,
                                                   self.max_length, part)
                self.sets[part].describe(part)

    def unlabelled(self, path: Path, size: int
                   ) -> Iterator[tuple[list[str], TokenBatch, list[tuple[str, ...]]]]:
        """Yield batches of ``size`` unlabelled texts of a table with their line numbers and texts,
        in the order of the table."""
        rows, tokenizer = read_texts(path, self.documents.columns), self.load_tokenizer()
        num_cut = 0
        while some := list(islice(rows, size)):
            encoded = EncodedDocuments([Document(row.texts, NO_LABEL) for row in some], tokenizer,
                                       self.max_length)
            batch = encoded.batch(range(len(some)))
            num_cut += encoded.num_cut
            yield [str(row.number) for row in some], batch, [row.texts for row in some]
        tell_of_cuts(path, num_cut, 'example', self.max_length)


class EncodedDocuments(Dataset):
    """Documents as token ids; entry i is a pair of ids, int64 ``[length]``, and a label."""

    def __init__(self, documents: Sequence[Document], tokenizer: Tokenizer, max_length: int,
                 name: str = 'documents'):
        special = special_tokens(tokenizer)
        encodings = encoded(tokenizer, (text for document in documents for text in document.texts),
                            f'encoding {name}')
        tokens, first, full_lengths = [], [], []
        for document in documents:
            texts = [next(encodings).ids for _ in document.texts]
            num_special = 1 + len(texts)
            parts = cut(texts, max_length - num_special)
            tokens.append(framed(parts, special))
            first.append(len(parts[0]) + 2)
            full_lengths.append(sum(map(len, texts)) + num_special)
        self.tokens = torch.from_numpy(np.concatenate(tokens))
        self.full_lengths = np.array(full_lengths)  # before the cut
        self.lengths = np.array([len(ids) for ids in tokens])
        self.first = torch.tensor(first)  # tokens up to the first [SEP]
        self.ptr = np.concatenate([[0], np.cumsum(self.lengths)])
        self.label = torch.tensor([document.label for document in documents])

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin, end = self.ptr[index:index + 2]
        return self.tokens[begin:end].long(), self.label[index]

    @property
    def num_cut(self) -> int:
        return int((self.full_lengths > self.lengths).sum())

    def batch(self, numbers: Iterable[int]) -> TokenBatch:
        return collate([self[number] for number in numbers])

    def rolled(self, shift: int, keep_ends: bool) -> EncodedDocuments:
        """Return the same documents with the token at position i moved to i + ``shift``."""
        rolled, end = copy.copy(self), int(keep_ends)
        rolled.tokens = torch.cat([
            torch.cat([tokens[:end], tokens[end:len(tokens) - end].roll(shift),
                       tokens[len(tokens) - end:]])
            for tokens in self.tokens.split(self.lengths.tolist())])
        return rolled

    @rank_zero_only
    def describe(self, name: str) -> None:
        print(f'{name:<5} {len(self):>7,} documents of {len(self.label.unique())} classes; '
              f'{spread_of_lengths(self.full_lengths)}; '
              f'{self.num_cut:,} cut to {self.lengths.max():,}')


def collate(examples: list[tuple[Tensor, Tensor]]) -> TokenBatch:
    tokens, label = zip(*examples)
    ptr = torch.tensor([0, *map(len, tokens)]).cumsum(0)
    return TokenBatch(torch.cat(tokens), ptr, torch.stack(label))
