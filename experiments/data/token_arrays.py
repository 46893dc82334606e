"""Labelled sequences of token ids, from NumPy files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.data import sequences
from experiments.data.labels import given_parts


@dataclass(frozen=True)
class TokenArrays(sequences.SequenceSource):
    """Labelled sequences of token ids, ``[examples, length]``. A label is a string or an integer.

    The arrays are ``tokens`` and ``label`` in one ``.npz`` file, or the files ``NAME.npy`` and
    ``NAME_label.npy``.

    Args:
        path (str): The training file, ``.npz`` or ``NAME.npy``.
        val (str, optional): The development file. If omitted, a tenth of the examples of ``path``.
        test (str, optional): The test file. If omitted, another tenth of the examples of ``path``.
        padding (int, optional): The id that pads the end of shorter sequences. Padding at the end
            of a sequence is removed.
        classes (list of str, optional): The names of the classes in order. If omitted, the labels
            in the training file.
        seed (int): Seed of the division into parts.
    """

    path: str
    val: str | None = None
    test: str | None = None
    padding: int | None = None
    classes: list[str] | None = None
    seed: int = 0

    def read(self, max_length: int) -> sequences.SequenceData:
        parts = {part: self._read_part(path, max_length)
                 for part, path in given_parts(self.path, self.val, self.test).items()}
        largest = max(int(row.max()) for part in parts.values() for row in part.sequences)
        return sequences.divided('token ids', parts, largest + 1, self.classes, self.seed)

    def unlabelled(self, path: Path) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        for name, rows in super().unlabelled(path):
            yield name, tuple(self._without_padding(row, f'{path}, row {name}') for row in rows)

    def _read_part(self, path: Path, max_length: int) -> sequences.LabelledSequences:
        tokens = sequences.check_ids(sequences.read_tokens(path), str(path))
        labels = sequences.read_labels(path, len(tokens))
        tokens = tokens.astype(np.min_scalar_type(int(tokens.max())))
        rows = [self._without_padding(row, f'{path}, row {number}')[:max_length]
                for number, row in enumerate(tokens)]
        return sequences.LabelledSequences(rows, labels, lambda place: f'{path}, row {place}',
                                           str(path))

    def _without_padding(self, row: np.ndarray, where: str) -> np.ndarray:
        if self.padding is None:
            return row
        places = np.flatnonzero(row != self.padding)
        if not len(places):
            raise ValueError(f"{where}: expected a sequence with other ids than the padding "
                             f"{self.padding} (got only padding)")
        return row[:places[-1] + 1]
