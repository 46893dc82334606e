"""The handwritten digits that ship with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from experiments.data.sequences import PARTS, SequenceData, Sequences, SequenceSource
from experiments.data.what_was_read import readable
from graphattn.utils.reading import read_lines

NUM_PIXELS, NUM_LEVELS, NUM_CLASSES = 64, 17, 10


@dataclass(frozen=True)
class DigitImages(SequenceSource):
    """1,797 images of 8 x 8 grey levels from 0 to 16, pixel by pixel in rows.

    The images replace those of Long Range Arena if CIFAR-10 is unavailable.

    Args:
        path (str, optional): Another file in scikit-learn's format, see :func:`read_digits`.
    """

    path: str | None = None

    def read(self, max_length: int) -> SequenceData:
        if max_length < NUM_PIXELS:
            raise ValueError(f"'max_length' must be at least {NUM_PIXELS}, the number of pixels "
                             f"of an image (got {max_length})")
        return SequenceData('stand-in for CIFAR-10: digits of 8 x 8 pixels', NUM_LEVELS,
                            NUM_CLASSES, {
                                part: Sequences.of_equal_length(rows[:, :-1].astype(np.uint8),
                                                                rows[:, -1])
                                for part, rows in zip(PARTS, split_digits(self.path))}, (8, 8, 1))


def split_digits(path: str | None = None) -> list[np.ndarray]:
    """Return the rows for training, development and testing, by a fixed, stratified split."""
    from sklearn.model_selection import train_test_split

    data = read_digits(path or files('sklearn.datasets.data') / 'digits.csv.gz')
    train, held_out = train_test_split(data, train_size=0.7, stratify=data[:, -1], random_state=0)
    val, test = train_test_split(held_out, test_size=2 / 3, stratify=held_out[:, -1],
                                 random_state=0)
    return [train, val, test]


def read_digits(path: str | Path) -> np.ndarray:
    """Read a digits file as rows of 64 grey levels and the class, int64 ``[num_images, 65]``."""
    path = Path(str(path))
    with readable(f"'path' cannot be read: {path}",
                  "'path' must be a CSV file, gzipped if its name ends in .gz"):
        rows = [_row(line, f'{path}, line {number}')
                for number, line in read_lines(path, 'ascii')]
    if not rows:
        raise ValueError(f"{path}: expected at least one image (got an empty file)")
    return np.array(rows)


def _row(line: str, where: str) -> list[int]:
    try:
        row = list(map(int, line.split(',')))
    except ValueError:
        row = []
    if (len(row) != NUM_PIXELS + 1 or min(row) < 0 or max(row) >= NUM_LEVELS
            or row[-1] >= NUM_CLASSES):
        raise ValueError(f"{where}: expected {NUM_PIXELS} grey levels from 0 to {NUM_LEVELS - 1} "
                         f"and a class from 0 to {NUM_CLASSES - 1} (got {line.strip()[:60]!r})")
    return row
