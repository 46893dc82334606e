"""Sources of pairs of texts to classify, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.data.byte_text import NUM_BYTES, ByteSource, bytes_of
from experiments.data.sequences import PARTS, SequenceData, Sequences, check_at_least
from experiments.data.text.document_files import Document, DocumentSource
from experiments.data.what_was_read import readable
from graphattn.utils.reading import filled_lines

COLUMNS = 'label, id, id, text, text'


@dataclass(frozen=True)
class AanPairs(ByteSource):
    """Pairs of papers of the ACL Anthology, labelled by whether one cites the other.

    Long Range Arena's files are ``new_aan_pairs.train.tsv``, ``new_aan_pairs.eval.tsv`` and
    ``new_aan_pairs.test.tsv``::

        1.0    P05-1001    W03-0402    the first text    the second text

    Columns are separated by tabs, and nothing is quoted. The files may have any encoding.

    Args:
        path (str): The folder with the files, ``lra_release/tsv_data``.
    """

    path: str

    def read(self, max_length: int) -> SequenceData:
        names = dict(zip(PARTS, ('train', 'eval', 'test')))
        return SequenceData('pairs of papers, byte by byte', NUM_BYTES, 2, {
            part: read_pairs(Path(self.path) / f'new_aan_pairs.{name}.tsv', max_length)
            for part, name in names.items()})


def read_pairs(path: Path, max_length: int) -> Sequences:
    """Read the pairs of one file. Each text is cut at ``max_length`` bytes."""
    texts, labels = [], []
    with readable(f'{path} cannot be read',
                  "'path' must be the folder of Long Range Arena's new_aan_pairs.train.tsv, "
                  ".eval.tsv and .test.tsv"):
        for number, line in tqdm(filled_lines(path, 'latin-1'), desc=f'reading {path.name}',
                                 unit=' pairs', disable=None):
            label, *columns = line.rstrip('\r\n').split('\t')
            if len(columns) != 4 or not all(columns[2:]):
                raise ValueError(f"{path}, line {number}: expected the columns {COLUMNS}, "
                                 f"separated by tabs (got {len(columns) + 1} columns: "
                                 f"{line.strip()!r:.60})")
            if label not in ('0', '1', '0.0', '1.0'):
                raise ValueError(f"{path}, line {number}: expected the label 0.0 or 1.0 (got "
                                 f"{label!r:.20})")
            texts += [_bytes(text, max_length) for text in columns[2:]]
            labels.append(int(label[0]))
    if not labels:
        raise ValueError(f"{path}: expected at least one pair (got none)")
    return Sequences.of(texts, labels)


def _bytes(text: str, max_length: int) -> np.ndarray:
    return np.frombuffer(text[:max_length].encode('latin-1'), np.uint8)


@dataclass(frozen=True)
class DocumentPairs(ByteSource):
    """Pairs of documents. The task is to tell whether both have the same class.

    The pairs replace Long Range Arena's task Retrieval if the papers of the ACL Anthology are
    unavailable.

    Every document is the first of ``pairs_each`` pairs. The second document is drawn from the same
    part. With equal probability, it has the same class or another class.

    Args:
        documents (DocumentSource): The source of the documents.
        pairs_each (int): Number of pairs of each document.
        seed (int): Seed of the pairs.
    """

    documents: DocumentSource
    pairs_each: int = 4
    seed: int = 0

    def __post_init__(self):
        check_at_least(1, pairs_each=self.pairs_each)
        check_at_least(0, seed=self.seed)

    def read(self, max_length: int) -> SequenceData:
        parts = {}
        for number, (part, documents) in enumerate(self.documents.read().parts.items()):
            rng = np.random.default_rng((self.seed, number))
            first, second, label = zip(*self._pairs(documents, rng, part))
            texts = [bytes_of(document.text, max_length) for document in documents]
            both = np.stack([first, second], axis=1).ravel()
            parts[part] = Sequences.of((texts[i] for i in both), label)
        return SequenceData(f'stand-in for pairs of papers: pairs of '
                            f'{type(self.documents).__name__}, byte by byte', NUM_BYTES, 2, parts)

    def _pairs(self, documents: list[Document], rng: np.random.Generator,
               part: str) -> Iterator[tuple[int, int, int]]:
        if not all(isinstance(document, Document) for document in documents):
            raise ValueError("'documents' must be single texts (got pairs); for pairs, use "
                             "DocumentBytes")
        label = np.array([document.label for document in documents])
        if len(documents) < 4 or (np.unique(label, return_counts=True)[1] < 2).any() or (
                label == label[:1]).all():
            raise ValueError(f"'documents' must have at least two classes with two documents each "
                             f"in every part (got fewer in {part})")
        for first, own in enumerate(label):
            for _ in range(self.pairs_each):
                is_one_class = bool(rng.integers(2))
                others = np.flatnonzero((label == own) == is_one_class)
                yield first, int(rng.choice(others[others != first])), int(is_one_class)
