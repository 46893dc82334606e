"""A corpus as token ids in memory-mapped files, and the sequences cut from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock
from numba import njit
from tqdm import tqdm

from experiments.data.text.corpus import Document, is_held_out, read_documents
from graphattn.utils.files import new_folder, write_whole
from graphattn.utils.reading import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PARTS = ('train', 'val')
TOKEN_TYPES = ('uint16', 'uint32')
DOCUMENTS_AT_ONCE = 256
COUNTED = ('documents', 'sentences', 'tokens', 'characters', 'bytes')
FORMAT = 2  # version of the files, part of the cache key


class EncodedCorpus:
    """The token ids of one part of a corpus, in the files of a folder that are read on demand."""

    tokens: np.ndarray  # ids of all sentences, concatenated
    sentence_ptr: np.ndarray  # the start of each sentence, int64 [num_sentences + 1]
    document_ptr: np.ndarray  # the first sentence of each document, int64 [num_documents + 1]
    counts: np.ndarray  # occurrences of each token, int64 [vocab_size]
    size: dict[str, int]  # by the names in COUNTED, with one blank between sentences

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            layout = read_json(folder / 'layout.json')
            if layout['type'] not in TOKEN_TYPES:
                raise ValueError(f'layout.json: unknown token dtype {layout["type"]!r:.60}')
            self.size = {name: int(layout[name]) for name in COUNTED}
            self.tokens = _memory_map(folder / 'tokens.bin', layout['type'])
            if len(self.tokens) != self.size['tokens']:
                raise ValueError(f'tokens.bin: expected {self.size["tokens"]:,} tokens (got '
                                 f'{len(self.tokens):,})')
            self.sentence_ptr = _read_pointers(folder / 'sentence_ptr.bin', len(self.tokens))
            self.document_ptr = _read_pointers(folder / 'document_ptr.bin', self.num_sentences)
            self.counts = np.array(np.load(folder / 'counts.npy', 'r', allow_pickle=False))
            if self.counts.dtype != np.int64 or self.counts.sum() != len(self.tokens):
                raise ValueError('counts.npy: the counts do not match the tokens')
        except Exception as error:  # NumPy and the system raise many types
            raise ValueError(f"'cache' is damaged ({folder}: {error}); delete {folder.parent}, and "
                             f"the cache is built again") from error

    def __reduce__(self) -> tuple:
        # A data-loading worker opens the files itself.
        return EncodedCorpus, (self.folder,)

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_ptr) - 1

    @property
    def num_documents(self) -> int:
        return len(self.document_ptr) - 1

    def unigram_entropy(self, special: tuple[int, ...]) -> float:
        """Return the entropy of the tokens without the ids in ``special``, in nats: the loss of the
        best model that ignores all context."""
        counts = self.counts.astype(np.float64)
        counts[list(special)] = 0.
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())

    def cut(self, target: int, short_share: float, seed: int) -> np.ndarray:
        """Return the first sentence of each sequence, int64 ``[num_sequences + 1]``, memory-mapped.

        As in BERT, a sequence takes whole sentences of one document until they hold ``target``
        tokens or the document ends; for a fraction ``short_share`` of the sequences, the limit is
        uniform from 2 to ``target``.
        """
        path = self.folder / f'cut-{target}-{short_share}-{seed}.bin'
        if not path.exists():
            write_whole(path, lambda temporary: self._cut(temporary, target, short_share, seed))
        try:
            return _read_pointers(path, self.num_sentences)
        except (OSError, ValueError) as error:
            raise ValueError(f"'cache' is damaged ({error}); delete {path}, and the cache is built "
                             f"again") from error

    def _cut(self, path: Path, target: int, short_share: float, seed: int) -> None:
        rng = np.random.default_rng((seed, target))
        with path.open('wb') as file:
            for first in range(0, self.num_documents, 2**16):
                document_ptr = np.array(self.document_ptr[first:first + 2**16 + 1])
                sentence_ptr = np.array(self.sentence_ptr[document_ptr[0]:document_ptr[-1] + 1])
                begin = _cut_documents(document_ptr - document_ptr[0], sentence_ptr, target,
                                       short_share, rng)
                file.write((begin + document_ptr[0]).tobytes())
            file.write(np.int64(self.num_sentences).tobytes())


@njit(cache=True)
def _cut_documents(document_ptr: np.ndarray, sentence_ptr: np.ndarray, target: int,
                   short_share: float, rng: np.random.Generator) -> np.ndarray:
    begin = np.empty(len(sentence_ptr), dtype=np.int64)
    count = 0
    for document in range(len(document_ptr) - 1):
        sentence = document_ptr[document]
        while sentence < document_ptr[document + 1]:
            begin[count] = sentence
            count += 1
            size = rng.integers(2, target + 1) if rng.random() < short_share else target
            first = sentence_ptr[sentence]
            while (sentence < document_ptr[document + 1]
                   and sentence_ptr[sentence] - first < size):
                sentence += 1
    return begin[:count]


def corpus_key(path: Path, tokenizer: str) -> str:
    """Return a key under which the encoded corpus is cached: a digest of the files, their sizes and
    times, and the tokenizer."""
    files = sorted(path.rglob('*')) if path.is_dir() else [path]
    seen = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns)
            for file in files if file.is_file()] or str(path)  # a name on the hub
    return blake2b(json.dumps([FORMAT, seen, tokenizer]).encode(), digest_size=12).hexdigest()


def encode_corpus(path: Path, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the parts of a corpus into ``folder``, complete or not at all, or wait for another
    process that does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f'.{folder.name}.lock')):
        if not folder.exists():
            with new_folder(folder) as temporary:
                _write_parts(path, tokenizer, temporary)


def _write_parts(path: Path, tokenizer: Tokenizer, folder: Path) -> None:
    writers = {part: _PartWriter(folder / part, tokenizer.get_vocab_size()) for part in PARTS}
    documents = iter(tqdm(read_documents(path), desc='encoding the corpus', unit=' documents',
                          disable=None))
    while some := list(islice(documents, DOCUMENTS_AT_ONCE)):
        for document, ids in zip(some, _encode(some, tokenizer)):
            writers['val' if is_held_out(document) else 'train'].write(document, ids)
    for writer in writers.values():
        writer.close()
    if not all(writer.size['documents'] for writer in writers.values()):
        counts = ' and '.join(f'{writer.size["documents"]} for {part}'
                              for part, writer in writers.items())
        raise ValueError(f"'corpus' must have documents for training and for development, about "
                         f"one in twenty (got {counts} from {path}); separate documents by blank "
                         f"lines if the file has one sentence on each line")


def _encode(documents: Sequence[Document], tokenizer: Tokenizer) -> Iterator[list[list[int]]]:
    """Yield the ids of each sentence of each document."""
    # sentences after the first begin with a blank, because byte tokenizers distinguish that
    sentences = [f' {sentence}' if place else sentence
                 for document in documents for place, sentence in enumerate(document)]
    encoded = iter(tokenizer.encode_batch_fast(sentences, add_special_tokens=False))
    for document in documents:
        yield [ids for _ in document if (ids := next(encoded).ids)]


class _PartWriter:
    """Appends encoded documents to the files of one part of a shard."""

    def __init__(self, folder: Path, vocab_size: int):
        folder.mkdir()
        self.folder = folder
        self.dtype = TOKEN_TYPES[vocab_size > 2**16]
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        self.size = dict.fromkeys(COUNTED, 0)
        self.tokens, self.sentence_ptr, self.document_ptr = (
            (folder / f'{name}.bin').open('wb')
            for name in ('tokens', 'sentence_ptr', 'document_ptr'))

    def write(self, document: Document, sentences: list[list[int]]) -> None:
        if not sentences:
            return
        tokens = np.concatenate(sentences).astype(self.dtype)
        sizes = np.array([len(ids) for ids in sentences], dtype=np.int64)
        begin = self.size['tokens'] + np.cumsum(sizes) - sizes
        self.tokens.write(tokens.tobytes())
        self.sentence_ptr.write(begin.tobytes())
        self.document_ptr.write(np.int64(self.size['sentences']).tobytes())
        self.counts += np.bincount(tokens, minlength=len(self.counts))
        text = ' '.join(document)
        own = (1, len(sentences), len(tokens), len(text), len(text.encode()))
        self.size = {name: self.size[name] + count for name, count in zip(COUNTED, own)}

    def close(self) -> None:
        self.sentence_ptr.write(np.int64(self.size['tokens']).tobytes())
        self.document_ptr.write(np.int64(self.size['sentences']).tobytes())
        for file in (self.tokens, self.sentence_ptr, self.document_ptr):
            file.close()
        np.save(self.folder / 'counts.npy', self.counts)
        (self.folder / 'layout.json').write_text(
            json.dumps({'type': self.dtype, **self.size}) + '\n')


def _read_pointers(path: Path, end: int) -> np.ndarray:
    """Return the pointers in a file, which rise from 0 to ``end``, as compiled loops rely on."""
    pointers = _memory_map(path, 'int64')
    if pointers[0] != 0 or pointers[-1] != end or not (pointers[1:] > pointers[:-1]).all():
        raise ValueError(f'{path.name}: does not rise from 0 to {end:,}')
    return pointers


def _memory_map(path: Path, dtype: str) -> np.ndarray:
    # As a plain array, because each slice of an np.memmap is a new object, which doubled the time.
    return np.asarray(np.memmap(path, dtype=dtype, mode='r'))
