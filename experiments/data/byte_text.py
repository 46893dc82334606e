"""Sources that read texts, and pairs of texts, byte by byte."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.data.sequences import (
    PARTS,
    SequenceData,
    Sequences,
    SequenceSource,
    check_at_least,
)
from experiments.data.text.document_files import (
    NINE_ONE,
    Document,
    DocumentSource,
    document_paths,
    part_of,
)
from experiments.data.text.text_table import read_texts
from experiments.data.what_was_read import readable
from graphattn.utils.reading import filled_lines

NUM_BYTES = 256
COLUMNS = 'label, id, id, text, text'  # of pairs of papers
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
            part: Sequences.of((np.frombuffer(text[:max_length], np.uint8) for text, _ in rows),
                               [label for _, label in rows]) for part, rows in parts.items()},
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
            texts += [np.frombuffer(text[:max_length].encode('latin-1'), np.uint8)
                      for text in columns[2:]]
            labels.append(int(label[0]))
    if not labels:
        raise ValueError(f"{path}: expected at least one pair (got none)")
    return Sequences.of(texts, labels)


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
            texts = [bytes_of(document.texts[0], max_length) for document in documents]
            both = np.stack([first, second], axis=1).ravel()
            parts[part] = Sequences.of((texts[i] for i in both), label)
        return SequenceData(f'stand-in for pairs of papers: pairs of '
                            f'{type(self.documents).__name__}, byte by byte', NUM_BYTES, 2, parts)

    def _pairs(self, documents: list[Document], rng: np.random.Generator,
               part: str) -> Iterator[tuple[int, int, int]]:
        if any(len(document.texts) > 1 for document in documents):
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
