"""Sources that read texts byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.data.sequences import SequenceData, Sequences, SequenceSource
from experiments.data.text.document_files import (
    NINE_ONE,
    DocumentSource,
    document_paths,
    part_of,
)
from experiments.data.text.text_table import read_texts

NUM_BYTES = 256
MAX_REVIEW = 2**16  # bytes read of a review; the longest review has 14,000


class ByteSource(SequenceSource):
    """Base class of data sources that read texts as bytes, without a tokenizer."""

    def unlabelled(self, path: Path) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        """Yield the name of each line of a table, and its one or two texts as arrays of bytes.

        See :func:`experiments.data.text.text_table.read_texts`.
        """
        for row in read_texts(path):
            yield str(row.number), tuple(np.frombuffer(text.encode(), np.uint8)
                                       for text in row.texts)


@dataclass(frozen=True)
class ImdbBytes(ByteSource):
    """IMDB film reviews as bytes.

    The task is to tell whether a review is favourable. The files are those of aclImdb::

        train/pos/0_9.txt        train/neg/0_3.txt        test/pos/0_10.txt        test/neg/0_2.txt

    The files may have any encoding.

    Args:
        path (str): The folder with ``train`` and ``test``; ``train/unsup`` is not read.
        dev_is_test (bool): Whether the test reviews are also the development reviews, as in Long
            Range Arena and Nyströmformer. A model that is chosen on these reviews is then not
            tested on unseen reviews. If false, a tenth of the training reviews, chosen by their
            text, is for development.
    """

    path: str
    dev_is_test: bool = False

    def read(self, max_length: int) -> SequenceData:
        learn, test = (self._read_part(Path(self.path) / part) for part in ('train', 'test'))
        parts = {'train': learn, 'dev': test, 'test': test}
        if not self.dev_is_test:
            parts |= {part: [row for row in learn if part_of(row[0].decode('latin-1'), 0,
                                                             NINE_ONE) == part]
                      for part in ('train', 'dev')}
        return SequenceData('IMDB, byte by byte', NUM_BYTES, 2, {
            part: of_texts(rows, max_length) for part, rows in parts.items()},
            classes=('negative', 'positive'))

    @staticmethod
    def _read_part(folder: Path) -> list[tuple[bytes, int]]:
        rows = []
        for label, name in enumerate(('neg', 'pos')):
            for path in tqdm(document_paths(folder / name, '.txt'), disable=None,
                             desc=f'reading {folder.name}/{name}', unit=' reviews'):
                with path.open('rb') as file:
                    text = file.read(MAX_REVIEW)
                if not text.strip():
                    raise ValueError(f"{path}: expected a text (got an empty document); remove "
                                     f"this file")
                rows.append((text, label))
        return rows


@dataclass(frozen=True)
class DocumentBytes(ByteSource):
    """Documents, or pairs of documents, byte by byte.

    They replace the texts of Long Range Arena if IMDB is unavailable.

    Args:
        documents (DocumentSource): The source of the documents.
    """

    documents: DocumentSource

    def read(self, max_length: int) -> SequenceData:
        collection = self.documents.read()
        return SequenceData(
            f'stand-in for IMDB: {type(self.documents).__name__}, byte by byte', NUM_BYTES,
            len(collection.classes), {
                part: Sequences.of(
                    (bytes_of(text, max_length) for document in documents
                     for text in document.texts), [document.label for document in documents])
                for part, documents in collection.parts.items()},
            classes=collection.classes)


def bytes_of(text: str, max_length: int) -> np.ndarray:
    """Return the first ``max_length`` bytes of a text in UTF-8, uint8 ``[length]``."""
    return np.frombuffer(text.encode()[:max_length], np.uint8)


def of_texts(rows: list[tuple[bytes, int]], max_length: int) -> Sequences:
    """Return texts with their classes as sequences of bytes, cut at ``max_length``."""
    return Sequences.of((np.frombuffer(text[:max_length], np.uint8) for text, _ in rows),
                        [label for _, label in rows])
