"""Pieces of photographs that an installed package contains."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from experiments.data.sequences import (
    PARTS,
    SequenceData,
    Sequences,
    SequenceSource,
    check_at_least,
)

NAMES = ('china.jpg', 'flower.jpg')


@dataclass(frozen=True)
class PicturePieces(SequenceSource):
    """Square pieces of scikit-learn's two photographs, as red, green and blue, pixel by pixel.

    The pieces replace CIFAR-10 and ImageNet if these are unavailable.

    Pieces do not overlap. Of every ten columns of pieces, the eighth and ninth are for testing, and
    the tenth is for development. So no piece of one part is surrounded by pieces of another part.

    Args:
        side (int): Pixels of a piece along each side.
    """

    side: int = 16

    def __post_init__(self):
        check_at_least(1, side=self.side)

    def read(self, max_length: int) -> SequenceData:
        check_at_least(3 * self.side**2, max_length=max_length)
        pieces: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
        for name in NAMES:
            picture = read_photograph(name)
            rows, columns = (size // self.side for size in picture.shape[:2])
            if not rows or columns < 10:
                raise ValueError(f"'side' must be at most {picture.shape[1] // 10}, a tenth of the "
                                 f"side of a picture (got {self.side})")
            cut = picture[:rows * self.side, :columns * self.side].reshape(
                rows, self.side, columns, self.side, 3).swapaxes(1, 2)
            for column in range(columns):
                part = 'train' if column % 10 < 7 else 'test' if column % 10 < 9 else 'dev'
                pieces[part].append(cut[:, column].reshape(rows, -1))
        shape = (self.side, self.side, 3)
        return SequenceData('stand-in for photographs: pieces of two pictures', 256, 1, {
            part: Sequences.of_equal_length(rows := np.concatenate(some), np.zeros(len(rows)))
            for part, some in pieces.items()}, shape)


def read_photograph(name: str) -> np.ndarray:
    """Read one of scikit-learn's photographs, uint8 ``[height, width, 3]``."""
    from PIL import Image

    with (files('sklearn.datasets.images') / name).open('rb') as file, Image.open(file) as picture:
        return np.asarray(picture.convert('RGB'))
