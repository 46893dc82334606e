"""The files of Pathfinder as Long Range Arena released them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.data.sequences import PARTS, SequenceData, Sequences, SequenceSource
from graphattn.utils.reading import filled_lines

MAX_PICTURE = 2**20  # bytes
HARD = 'curv_contour_length_14'


@dataclass(frozen=True)
class PathfinderFiles(SequenceSource):
    """Images of the Pathfinder task, read from pictures and lists of pictures.

    The lists are text files despite their suffix ``.npy``::

        metadata/0.npy            imgs/0 sample_0.png 0 1 1.0 14 4 2 0.5 1 1
        imgs/0/sample_0.png       a grey picture of 32 x 32 pixels; its label is the fourth entry

    The release has no division into parts. Four fifths of the pictures are drawn for training, and
    a tenth each for development and testing.

    Args:
        path (str): The folder with ``imgs`` and ``metadata``; the hard set is
            ``lra_release/pathfinder32/curv_contour_length_14``.
        size (int): Pixels of a side.
        seed (int, optional): Seed of the division. If ``None``, pictures are divided in the order
            of the lists.
    """

    path: str
    size: int = 32
    seed: int | None = 0

    def read(self, max_length: int) -> SequenceData:
        if max_length < self.size**2:
            raise ValueError(f"'max_length' must be at least {self.size**2}, the number of "
                             f"pixels of an image (got {max_length})")
        listed = [row for path in self._lists() for row in self._rows(path)]
        [(picture, times)] = Counter(path for path, _ in listed).most_common(1)
        if times > 1:
            raise ValueError(f"{picture} must be listed once (got {times} lines), because "
                             f"otherwise training and test parts could share this picture; remove "
                             f"the other lines")
        image = np.empty((len(listed), self.size**2), np.uint8)
        for i, (path, _) in enumerate(tqdm(listed, desc='reading Pathfinder', unit=' images',
                                           disable=None)):
            image[i] = read_picture(path, self.size).ravel()
        label = np.array([label for _, label in listed])
        order = np.arange(len(listed))
        if self.seed is not None:
            np.random.default_rng(self.seed).shuffle(order)
        counts = [len(order) * 8 // 10, len(order) * 9 // 10]
        return SequenceData(f'Pathfinder{self.size}, released', 256, 2, {
            part: Sequences.of_equal_length(image[own], label[own])
            for part, own in zip(PARTS, np.split(order, counts))})

    def _lists(self) -> list[Path]:
        folder = Path(self.path) / 'metadata'
        lists = [path for path in folder.glob('*.npy') if path.stem.isdecimal()]
        if not lists:
            raise ValueError(f"'path' must contain the folders 'imgs' and 'metadata', as {HARD} "
                             f"does (got {folder}, without a list such as metadata/0.npy)")
        return sorted(lists, key=lambda path: (int(path.stem), path))

    def _rows(self, path: Path) -> list[tuple[Path, int]]:
        """Read a list of pictures. Return the path and the label of each picture."""
        rows = []
        for number, line in filled_lines(path, 'ascii'):
            found = re.match(r'(imgs/\d+) (sample_\d+\.png) \d+ ([01])\s', line)
            if not found:
                raise ValueError(f"{path}, line {number}: expected a folder, a file, a number and "
                                 f"a label 0 or 1, such as 'imgs/0 sample_0.png 0 1 ...' (got "
                                 f"{line.strip()!r:.60})")
            rows.append((Path(self.path) / found[1] / found[2], int(found[3])))
        if not rows:
            raise ValueError(f"{path}: expected at least one picture in the list (got none)")
        return rows


def read_picture(path: Path, size: int) -> np.ndarray:
    """Read the grey levels of a square picture, uint8 ``[size, size]``."""
    from PIL import Image

    try:
        with path.open('rb') as file:
            content = file.read(MAX_PICTURE + 1)
        if len(content) > MAX_PICTURE:
            raise ValueError(f'larger than {MAX_PICTURE:,} bytes')
        with Image.open(BytesIO(content), formats=['PNG']) as picture:
            if picture.size != (size, size) or picture.mode != 'L':
                raise ValueError(f'got {picture.size[0]} x {picture.size[1]} pixels of mode '
                                 f'{picture.mode}')
            # verify() compares checksums, and leaves the picture unusable, so it is opened again
            picture.verify()
        with Image.open(BytesIO(content), formats=['PNG']) as picture:
            return np.asarray(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f'{path}: expected a grey PNG picture of {size} x {size} pixels '
                         f'({error})') from error
