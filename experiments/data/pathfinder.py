"""Pictures of the Pathfinder task, drawn or released: do two discs lie on one dashed contour?"""

import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from experiments.data.cached_arrays import cached_arrays
from experiments.data.image_files import read_png
from experiments.data.sequences import SequenceData, Sequences, SequenceSource, check_at_least
from graphattn.utils.reading import filled_lines

# Lengths are in pixels.
SIDE, BORDER = 32, 1.5
STEP, DASH, DISC = 3., 1.6, 1.5  # from dash to dash, length of a dash, radius of a disc
APART = 4.  # at least, between the centres of dashes that do not follow each other
MAX_TURN = np.pi / 3  # from dash to dash
NUM_DASHES, NUM_SHORT, NUM_DISTRACTORS = 10, 4, 5
NEAR = 7.  # from the start of one contour to the start of the other
SIMILAR = 3.  # at most, between the distances of the discs under the two labels
TRIALS = 8  # for each dash
ATTEMPTS_AT_ONCE = 2048
GREY, WHITE = 180, 255
FINER = 8  # pictures are drawn at this resolution, then downsampled
VERSION = 2  # of the cache
HARD = 'curv_contour_length_14'


@dataclass(frozen=True)
class GeneratedPathfinder(SequenceSource):
    """Grey images of 32 x 32 pixels, row by row: two contours of 10 dashes, shorter distractors,
    and two discs. The label is 1 if the discs lie at the two ends of one contour, and 0 if they
    lie on different contours.

    The task is that of Linsley et al. (2018), but the distribution is not that of Long Range
    Arena: each contour is a random walk that turns by at most 60 degrees from dash to dash, and the
    distance of the discs says little about the label.

    Args:
        num_train (int): Number of training images.
        num_dev (int): Number of development images.
        num_test (int): Number of test images.
        seed (int): Seed of the images.
        cache (str): The folder in which they are cached.
    """

    num_train: int = 32_000
    num_dev: int = 2_000
    num_test: int = 2_000
    seed: int = 0
    cache: str = 'data/cache'

    def __post_init__(self):
        check_at_least(1, num_train=self.num_train, num_dev=self.num_dev, num_test=self.num_test)
        check_at_least(0, seed=self.seed)

    def read(self, max_length: int) -> SequenceData:
        check_at_least(SIDE**2, max_length=max_length)
        settings = {**asdict(self), 'version': VERSION}
        del settings['cache']
        arrays = cached_arrays(Path(self.cache), 'pathfinder', settings, self._draw)
        image, label = arrays['image'], arrays['label']
        whole = Sequences.of_equal_length(image.reshape(len(image), -1), label)
        return SequenceData('stand-in for Pathfinder: drawn contours', 256, 2,
                            whole.parts(self.num_train, self.num_dev))

    def _draw(self) -> dict[str, np.ndarray]:
        drawings = draw_contours(np.random.default_rng(self.seed),
                                 self.num_train + self.num_dev + self.num_test)
        images = [draw_image(dashes, discs) for dashes, discs in tqdm(
            zip(drawings.dashes, drawings.discs), 'drawing Pathfinder', len(drawings.label),
            unit=' images', disable=None)]
        return {'image': np.stack(images), 'label': drawings.label}


class Contours(NamedTuple):
    """The contours of some images: two long ones, then distractors."""

    # Column, row and angle of each dash, float64 [num_images, num_contours, NUM_DASHES, 3]; NaN
    # where a contour has ended.
    dashes: np.ndarray
    discs: np.ndarray  # column and row of each disc, float64 [num_images, 2, 2]
    label: np.ndarray  # 1 if one contour has both discs, uint8 [num_images]


def draw_contours(rng: np.random.Generator, number: int) -> Contours:
    """Draw the contours of ``number`` random images; every other image, in random order, has both
    discs on one contour."""
    found, count = [], 0
    with tqdm(total=number, desc='finding contours', unit=' images', disable=None) as bar:
        while count < number:
            found.append(_some_contours(rng))
            count += len(found[-1])
            bar.update(len(found[-1]))
    dashes = np.concatenate(found)[:number]
    label = rng.permutation(np.arange(number, dtype=np.uint8) % 2)
    last = dashes[np.arange(number), 1 - label, -1]
    return Contours(dashes, np.stack([dashes[:, 0, 0], last], axis=1)[..., :2], label)


def _some_contours(rng: np.random.Generator) -> np.ndarray:
    """Draw the contours of those of many attempts whose long contours find room."""
    dashes = np.full((ATTEMPTS_AT_ONCE, 2, NUM_DASHES, 3), np.nan)
    _begin(rng, dashes, 0, rng.uniform(0, SIDE, (len(dashes), TRIALS, 2)))
    towards = rng.uniform(0, 2 * np.pi, (len(dashes), TRIALS))
    _begin(rng, dashes, 1, dashes[:, 0, 0, None, :2] + NEAR * _direction(towards))
    for place in range(1, NUM_DASHES):
        for contour in range(2):
            _continue(rng, dashes, contour, place)
    dashes = dashes[np.isfinite(dashes).all((1, 2, 3))]
    # The two distances at which the discs may be are about the same, or they would show the label.
    one, other = (np.linalg.norm(dashes[:, 0, 0, :2] - dashes[:, contour, -1, :2], axis=1)
                  for contour in range(2))
    dashes = np.pad(dashes[np.abs(one - other) < SIMILAR],
                    [(0, 0), (0, NUM_DISTRACTORS), (0, 0), (0, 0)], constant_values=np.nan)
    for contour in range(2, 2 + NUM_DISTRACTORS):
        _begin(rng, dashes, contour, rng.uniform(0, SIDE, (len(dashes), TRIALS, 2)))
        for place in range(1, NUM_SHORT):
            _continue(rng, dashes, contour, place)
    return dashes


def _begin(rng: np.random.Generator, dashes: np.ndarray, contour: int, at: np.ndarray) -> None:
    angle = rng.uniform(0, 2 * np.pi, at.shape[:2])
    dashes[:, contour, 0] = _first_free(dashes, at, angle)


def _continue(rng: np.random.Generator, dashes: np.ndarray, contour: int, place: int) -> None:
    last = dashes[:, contour, place - 1, None]
    angle = last[..., 2] + rng.uniform(-MAX_TURN, MAX_TURN, (len(dashes), TRIALS))
    others = dashes.copy()
    others[:, contour, place - 1] = np.nan  # the dash before it may be closer
    dashes[:, contour, place] = _first_free(others, last[..., :2] + STEP * _direction(angle), angle)


def _first_free(dashes: np.ndarray, at: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Return the first of the trials ``[num_images, TRIALS]`` of each image that is inside the
    image and apart from all dashes; NaN if none is."""
    centre = dashes[..., :2].reshape(len(dashes), 1, -1, 2)
    is_inside = ((at > BORDER) & (at < SIDE - BORDER)).all(axis=-1)
    is_near = (((at[:, :, None] - centre)**2).sum(axis=-1) < APART**2).any(axis=-1)
    is_free = is_inside & ~is_near
    every, first = np.arange(len(at)), is_free.argmax(axis=1)
    dash = np.concatenate([at, angle[..., None]], axis=-1)[every, first]
    return np.where(is_free.any(axis=1)[:, None], dash, np.nan)


def _direction(angle: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def draw_image(dashes: np.ndarray, discs: np.ndarray) -> np.ndarray:
    """Draw the dashes and discs of an image, uint8 ``[SIDE, SIDE]``."""
    from PIL import Image

    small = Image.fromarray(draw_fine(dashes, discs)).resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(small)


def draw_fine(dashes: np.ndarray, discs: np.ndarray) -> np.ndarray:
    """Draw an image ``FINER`` times as large."""
    from PIL import Image, ImageDraw

    picture = Image.new('L', (SIDE * FINER,) * 2)
    pen = ImageDraw.Draw(picture)
    drawn = dashes[np.isfinite(dashes[..., 0])]
    half = DASH / 2 * _direction(drawn[:, 2])
    for begin, end in zip(drawn[:, :2] - half, drawn[:, :2] + half):
        pen.line([*(FINER * begin), *(FINER * end)], fill=GREY, width=FINER)
    for disc in discs:
        pen.ellipse([*(FINER * (disc - DISC)), *(FINER * (disc + DISC))], fill=WHITE)
    return np.asarray(picture)


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
        check_at_least(self.size**2, max_length=max_length)
        listed = [row for path in self._lists() for row in self._rows(path)]
        [(picture, times)] = Counter(path for path, _ in listed).most_common(1)
        if times > 1:
            raise ValueError(f"{picture} must be listed once (got {times} lines), because "
                             f"otherwise training and test parts could share this picture; remove "
                             f"the other lines")
        image = np.empty((len(listed), self.size**2), np.uint8)
        for i, (path, _) in enumerate(tqdm(listed, desc='reading Pathfinder', unit=' images',
                                           disable=None)):
            image[i] = read_png(path, self.size, 'L').ravel()
        label = np.array([label for _, label in listed])
        order = np.arange(len(listed))
        if self.seed is not None:
            np.random.default_rng(self.seed).shuffle(order)
        first, second = len(order) * 8 // 10, len(order) * 9 // 10
        return SequenceData(f'Pathfinder{self.size}, released', 256, 2, Sequences.of_equal_length(
            image, label).parts(first, second - first, order=order))

    def _lists(self) -> list[Path]:
        folder = Path(self.path) / 'metadata'
        lists = [path for path in folder.glob('*.npy') if path.stem.isdecimal()]
        if not lists:
            raise ValueError(f"'path' must contain the folders 'imgs' and 'metadata', as {HARD} "
                             f"does (got {folder}, without a list such as metadata/0.npy)")
        return sorted(lists, key=lambda path: (int(path.stem), path))

    def _rows(self, path: Path) -> list[tuple[Path, int]]:
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
