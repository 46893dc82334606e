"""Labelled sequences over a small set of symbols, and the base class of their sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.data.labels import PARTS, class_names, class_numbers, stratified
from experiments.data.what_was_read import tell, unread
from graphattn.utils.reading import check_arrays

TOKENS, LABEL = 'tokens', 'label'  # arrays in a file
MAX_ID = 2**31 - 1


class Sequences(NamedTuple):
    """Concatenated sequences with labels; an example is one sequence or two consecutive ones."""

    tokens: np.ndarray  # ids, unsigned integers [num_tokens], mostly uint8
    ptr: np.ndarray  # the start of each sequence, int64 [num_sequences + 1]
    label: np.ndarray  # the class of each example, int64 [num_examples]

    @property
    def num_sequences(self) -> int:
        return len(self.ptr) - 1

    @property
    def sequences_per_example(self) -> int:
        return self.num_sequences // max(1, len(self.label))

    def sequence(self, number: int) -> np.ndarray:
        """Return the tokens of the sequence with index ``number``, ``[length]``."""
        return self.tokens[self.ptr[number]:self.ptr[number + 1]]

    def take(self, examples: np.ndarray) -> Sequences:
        """Return some of the examples, in the order of ``examples``."""
        width = self.sequences_per_example
        chosen = (width * np.asarray(examples)[:, None] + np.arange(width)).ravel()
        return Sequences.of((self.sequence(number) for number in chosen), self.label[examples])

    def parts(self, *sizes: int, order: np.ndarray | None = None) -> dict[str, Sequences]:
        """Return the examples in three parts, of which ``sizes`` are those of the first two."""
        order = np.arange(len(self.label)) if order is None else order
        return {part: self.take(numbers)
                for part, numbers in zip(PARTS, np.split(order, np.cumsum(sizes)))}

    @classmethod
    def of(cls, sequences: Iterable[np.ndarray], label: Iterable[int]) -> Sequences:
        """Return arrays of ids of one dtype, ``[length]`` each, as Sequences with labels."""
        sequences = [np.zeros(0, np.uint8), *sequences]
        ptr = np.cumsum([len(sequence) for sequence in sequences])
        return cls(np.concatenate(sequences), ptr, np.asarray(label, dtype=np.int64))

    @classmethod
    def of_equal_length(cls, tokens: np.ndarray, label: np.ndarray) -> Sequences:
        """Return the rows of a matrix ``[num_sequences, length]`` as Sequences with the given
        labels."""
        ptr = np.arange(len(tokens) + 1) * tokens.shape[1]
        return cls(tokens.reshape(-1), ptr, label.astype(np.int64))


class SequenceData(NamedTuple):
    """The sequences of a task, in three parts."""

    about: str  # a short description; it says so if the data are a stand-in
    num_tokens: int  # of different symbols
    num_classes: int
    parts: dict[str, Sequences]  # of train, dev and test
    shape: tuple[int, int, int] | None = None  # rows, columns and colours of images
    classes: tuple[str, ...] | None = None  # their names

    @property
    def longest(self) -> int:
        return max(int(np.diff(part.ptr).max(initial=0)) for part in self.parts.values())


class SequenceSource(ABC):
    """Base class of sources. A source reads or draws the sequences of a task."""

    @abstractmethod
    def read(self, max_length: int) -> SequenceData:
        """Return all sequences, the same in every call, cut at ``max_length`` tokens."""

    def unlabelled(self, path: Path) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        """Yield the name of each unlabelled example in a file, and the ids of its one or two
        sequences.

        The base class reads a NumPy array, see :func:`experiments.data.sequences.read_tokens`.
        """
        return token_rows(path)


class LabelledSequences(NamedTuple):
    """The labelled sequences of one file, before they are divided into parts."""

    sequences: list[np.ndarray]  # ids, [length] each
    labels: list[str]
    where: Callable[[int], str]  # the location of an example in its file, by its index
    source: str  # the file or folder


def divided(about: str, parts: dict[str, LabelledSequences], num_tokens: int,
            classes: list[str] | None, seed: int) -> SequenceData:
    """Divide sequences into three parts, of which one that is missing gets a tenth of the training
    part, and replace labels by indices of classes."""
    names = class_names(parts['train'].labels, classes, parts['train'].source)
    all_parts = {name: Sequences.of(part.sequences,
                                    class_numbers(part.labels, names, part.where))
                 for name, part in parts.items()}
    learn = all_parts['train']
    division = stratified((blake2b(row.tobytes(), digest_size=16).digest()
                           for row in parts['train'].sequences), learn.label,
                          [part for part in PARTS if part not in parts], seed,
                          parts['train'].source)
    all_parts |= {part: learn.take(numbers) for part, numbers in division.items()}
    return SequenceData(about, num_tokens, len(names), {part: all_parts[part] for part in PARTS},
                        classes=names)


def check_at_least(least: int, **sizes: int) -> None:
    """Raise an error that names the argument unless each is at least ``least``."""
    for name, size in sizes.items():
        if size < least:
            raise ValueError(f"'{name}' must be at least {least} (got {size})")


def check_labels(label: np.ndarray, num_classes: int, where: str) -> None:
    """Raise an error unless the labels are numbers of classes, from 0 to ``num_classes - 1``."""
    wrong = np.flatnonzero((label < 0) | (label >= num_classes))
    if len(wrong):
        raise ValueError(f"{where}: expected labels from 0 to {num_classes - 1} (got "
                         f"{label[wrong[0]]} as label number {wrong[0] + 1})")


# Arrays of token ids #################################################################


def read_tokens(path: Path) -> np.ndarray:
    """Read token ids, integers ``[num_examples, length]``: the array ``tokens`` of an ``.npz``
    file, or the array of an ``.npy`` file, which is memory-mapped."""
    if path.suffix not in ('.npy', '.npz'):
        raise ValueError(f"{path}: expected a NumPy file of token ids with the suffix .npy or .npz")
    tokens = read_array_of(path, TOKENS) if path.suffix == '.npz' else _read_file(path)
    if tokens.dtype.kind not in 'iu' or tokens.ndim != 2 or not tokens.size:
        raise ValueError(f"{path}: expected token ids as integers of shape [examples, length] (got "
                         f"{tokens.dtype} of shape {tokens.shape})")
    return tokens


def read_labels(path: Path, num_examples: int) -> list[str]:
    """Read the label of each example as a string: from the array ``label`` of an ``.npz`` file, or
    from ``NAME_label.npy`` next to ``NAME.npy``."""
    if path.suffix == '.npz':
        label = read_array_of(path, LABEL)
    else:
        path = path.with_name(f'{path.stem}_{LABEL}.npy')
        label = _read_file(path)
    if label.dtype.kind not in 'iuU' or label.shape != (num_examples,):
        raise ValueError(f"{path}: expected labels as integers or strings of shape "
                         f"[{num_examples}], one for each example (got {label.dtype} of shape "
                         f"{label.shape})")
    if label.dtype.kind == 'U' and not _are_characters(label):
        raise ValueError(f"{path}: expected labels that are valid Unicode (got other bytes)")
    return [str(value) for value in label.tolist()]


def token_rows(path: Path) -> Iterator[tuple[str, tuple[np.ndarray]]]:
    """Yield the index and the ids of each example in a file, integers ``[length]``."""
    tokens = read_tokens(path)
    return ((str(number), (check_ids(row, f'{path}, row {number}'),))
            for number, row in enumerate(tokens))


def check_ids(tokens: np.ndarray, where: str) -> np.ndarray:
    for value in (tokens.min(), tokens.max()):
        if not 0 <= value <= MAX_ID:
            raise ValueError(f"{where}: expected token ids from 0 to {MAX_ID:,} (got {value})")
    return tokens


def _are_characters(text: np.ndarray) -> bool:
    """Return whether all strings of an array are valid Unicode. NumPy does not check this."""
    if not text.dtype.itemsize:
        return False
    code = np.ascontiguousarray(text).view(text.dtype.str.partition('U')[0] + 'u4')
    return bool(((code <= 0x10FFFF) & ((code < 0xD800) | (code > 0xDFFF))).all())


def read_array_of(path: Path, name: str, used: Collection[str] = (TOKENS, LABEL)) -> np.ndarray:
    """Read an array of an ``.npz`` file without unpickling, and print the arrays that are not
    ``used``."""
    try:
        check_arrays(path)
        with np.load(path, allow_pickle=False) as file:
            names = file.files
            array = file[name] if name in names else None
        if others := unread(names, used, 'arrays'):
            tell(path, f'the array {name}', others)
    except Exception as error:  # NumPy and zipfile raise many types of errors
        raise ValueError(f'{path} cannot be read as NumPy arrays ({error})') from error
    if array is None:
        raise ValueError(f"{path}: expected an array {name!r} (got "
                         f"{', '.join(names) or 'no arrays'})")
    return array


def _read_file(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode='r', allow_pickle=False)
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a NumPy array ({error}); put token ids in "
                         f"NAME.npy and labels in NAME_{LABEL}.npy, or both in one .npz") from error
