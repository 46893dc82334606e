r"""Pathfinder: do two discs lie on one dashed contour? Drawn by the rules of Long Range Arena.

    python -m experiments.data.pathfinder --num_train 1000 --picture pathfinder.png

draws images, caches them in ``data/cache``, prints their distributions and draws a figure of some.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from experiments.data.cached_arrays import cached_arrays
from experiments.data.sequences import (
    PARTS,
    SequenceData,
    Sequences,
    SequenceSource,
    check_at_least,
)
from experiments.runs.command_line import run_function
from graphattn.extension import jit
from graphattn.utils.files import write_whole

FINER = 2  # lines and discs are drawn at this resolution, then downsampled
SEGMENT_TRIALS, DISTRACTOR_TRIALS = 3, 5
FREE, MAX_OVERLAP = 0.3, 1.8  # maximum of a mask where a seed begins; and of two overlaid masks
MIN_FREE_SHARE = 0.01
NUM_ANGLES = 360  # a seed points along a whole degree
IMAGES_AT_ONCE = 64


class Settings(NamedTuple):
    """Sizes of the images and their parts, in pixels.

    Attributes:
        size (int): Side of the square image.
        padding (int): Width of the border of the image, which dashes avoid.
        segment_length (int): Length of a dash.
        thickness (float): Thickness of a dash.
        margins (tuple): Candidates for half of the gap between dashes; each image draws one.
        disc_radius (float): Radius of the two discs.
        contour_length (int): Number of dashes of each of the two long contours.
        seed_distance (int): Distance between the starts of the two contours.
        continuity (float): Straightness of contours: with larger values, contours turn less from
            dash to dash.
        distractor_length (int): Number of dashes of a distractor.
        num_distractors (int): Number of distractors.
        contour_contrast (float): Contrast of the two long contours. The contrast of discs is 1.
        distractor_contrast (float): Contrast of distractors.
    """

    size: int
    padding: int
    segment_length: int
    thickness: float
    margins: tuple[int, ...]
    disc_radius: float
    contour_length: int
    seed_distance: int
    continuity: float
    distractor_length: int
    num_distractors: int
    contour_contrast: float
    distractor_contrast: float


SETTINGS = {
    32: Settings(32, 1, 2, 0.5, (1,), 1.5, 14, 7, 1.0, 4, 5, 1.5, 2.0),
    64: Settings(64, 1, 5, 1.0, (1,), 2.5, 14, 12, 1.8, 4, 5, 0.8, 0.8),
    128: Settings(128, 1, 5, 1.5, (2, 3), 3.0, 14, 20, 1.8, 4, 8, 0.9, 0.9),
}


@dataclass(frozen=True)
class GeneratedPathfinder(SequenceSource):
    """Grey images, row by row: two contours of 14 dashes, shorter distractors, and two discs. The
    label is 1 if the discs lie at the two ends of one contour, and 0 if they lie on different
    contours.

    (Linsley et al., 2018, with Long Range Arena's settings of the hard set,
    lra_benchmarks/data/pathfinder.py. That generator scales lines, discs and images by functions
    since removed from SciPy, which are reproduced here.)

    Args:
        size (int): Pixels of a side: 32, 64 or 128.
        num_train (int): Number of training images.
        num_dev (int): Number of development images.
        num_test (int): Number of test images.
        seed (int): Seed of the images.
        cache (str): The folder in which they are cached.

    Raises:
        ValueError: An argument is too small, or there are no settings for the size.
    """

    size: Literal[32, 64, 128] = 32
    num_train: int = 160_000
    num_dev: int = 20_000
    num_test: int = 20_000
    seed: int = 0
    cache: str = 'data/cache'

    def __post_init__(self):
        if self.size not in SETTINGS:
            raise ValueError(f"'size' must be one of {', '.join(map(str, SETTINGS))} "
                             f"(got {self.size})")
        check_at_least(1, num_train=self.num_train, num_dev=self.num_dev, num_test=self.num_test)
        check_at_least(0, seed=self.seed)

    def read(self, max_length: int) -> SequenceData:
        if max_length < self.size**2:
            raise ValueError(f"'max_length' must be at least {self.size ** 2}, the number of "
                             f"pixels of an image (got {max_length})")
        settings = asdict(self) | SETTINGS[self.size]._asdict()
        del settings['cache']
        arrays = cached_arrays(Path(self.cache), 'pathfinder', settings, self._draw)
        counts = np.cumsum([self.num_train, self.num_dev])
        images, labels = (np.split(arrays[name], counts) for name in ('image', 'label'))
        return SequenceData(f'Pathfinder{self.size}, generated', 256, 2, {
            part: Sequences.of_equal_length(image.reshape(len(image), -1), label)
            for part, image, label in zip(PARTS, images, labels)})

    def _draw(self) -> dict[str, np.ndarray]:
        number = self.num_train + self.num_dev + self.num_test
        image = np.empty((number, self.size, self.size), np.uint8)
        label = np.empty(number, np.uint8)
        done = 0
        with tqdm(total=number, desc=f'drawing Pathfinder{self.size}', unit=' images',
                  disable=None) as bar:
            for drawn in self._chunks(math.ceil(number / IMAGES_AT_ONCE)):
                count = min(IMAGES_AT_ONCE, number - done)
                image[done:done + count] = drawn.image[:count]
                label[done:done + count] = drawn.label[:count]
                done += count
                bar.update(count)
        return {'image': image, 'label': label}

    def _chunks(self, number: int) -> Iterator[Drawings]:
        """Yield chunks of random images, ``number`` images in total. A chunk depends only on its
        index, not on the process that draws it."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            yield from pool.map(lambda chunk: draw_images(
                np.random.default_rng((self.seed, chunk)), IMAGES_AT_ONCE, SETTINGS[self.size]),
                range(number))


class Drawings(NamedTuple):
    """Random images of the task, and the parts that each image consists of.

    Attributes:
        image (np.ndarray): Grey levels, uint8 ``[number, size, size]``.
        label (np.ndarray): 1 if one contour has both discs, uint8 ``[number]``.
        contour (np.ndarray): The two contours alone, float32 ``[number, 2, size, size]``.
        disc (np.ndarray): Row and column of each disc, int64 ``[number, 2, 2]``.
        attempts (np.ndarray): Attempts at a pair of contours, int64 ``[number]``.
    """

    image: np.ndarray
    label: np.ndarray
    contour: np.ndarray
    disc: np.ndarray
    attempts: np.ndarray


def draw_images(rng: np.random.Generator, number: int, settings: Settings) -> Drawings:
    """Draw ``number`` random images of the task."""
    shape = settings.size, settings.size
    drawn = Drawings(np.empty((number, *shape), np.uint8), np.empty(number, np.uint8),
                     np.empty((number, 2, *shape), np.float32), np.empty((number, 2, 2), np.int64),
                     np.zeros(number, np.int64))
    for i in range(number):
        # One type for all sizes, so that the loops are compiled once.
        own = settings._replace(margins=(settings.margins[rng.integers(len(settings.margins))],))
        drawn.label[i] = rng.integers(2)
        drawn.attempts[i] = _draw_image(rng, own, draw_dashes(own), drawn.label[i], drawn.image[i],
                                        drawn.contour[i], drawn.disc[i])
    return drawn


# Dashes and discs, drawn once ########################################################


class Dashes(NamedTuple):
    """All possible dashes. A contour begins with a seed, a dash that points along one of 360
    angles. Every other dash ends at one of a few positions around the end of the dash before it.

    Attributes:
        margin (int): Half of the gap between dashes.
        angle (np.ndarray): The angle of each dash, float64 ``[num_dashes]``: first the seeds, and
            then the other dashes.
        end (np.ndarray): The end positions relative to the pivot, the point at which a contour
            turns, int64 ``[num_ends, 2]``.
        weight (np.ndarray): Weight of each free end position after each dash: the square of
            ``cos(min(continuity * turn, pi / 2))``, float64 ``[num_dashes, num_ends]``.
        ink (np.ndarray): Pixels around the start of a seed or the end of another dash, float32
            ``[num_dashes, width, width]``.
        mask (np.ndarray): The room that each dash takes, which other dashes must not enter, of the
            shape of ``ink``.
        room (np.ndarray): The pixels around a seed that must be free, bool
            ``[360, height, height]``.
        place (np.ndarray): Possible positions of the first contour's seed, int64
            ``[360, most, 2]``.
        num_places (np.ndarray): The number of these positions, int64 ``[360]``.
        disc (np.ndarray): Pixels of a disc, float32 ``[diameter, diameter]``.
    """

    margin: int
    angle: np.ndarray
    end: np.ndarray
    weight: np.ndarray
    ink: np.ndarray
    mask: np.ndarray
    room: np.ndarray
    place: np.ndarray
    num_places: np.ndarray
    disc: np.ndarray


@cache
def draw_dashes(settings: Settings) -> Dashes:
    """Return all dashes that contours can contain. ``settings`` must have a single margin."""
    margin, = settings.margins
    step = settings.segment_length + margin
    around = np.deg2rad(np.arange(0, 360, 360 / (2 * step * np.pi)))
    end = np.unique(np.floor(step * np.stack([np.sin(around), np.cos(around)], 1)).astype(int),
                    axis=0)
    seed_angle = np.deg2rad(np.arange(-NUM_ANGLES // 2, NUM_ANGLES // 2))
    end_angle = np.arctan2(end[:, 0], end[:, 1])
    ink, mask = (np.stack(part) for part in zip(*(
        _draw_dash(settings, margin, angle) for angle in [*seed_angle, *map(opposite, end_angle)])))
    # A seed's room is cut to this window; its centre is one pixel from the seed.
    reach, middle = 2 * step + 1, mask.shape[1] // 2
    first = middle - (step + 1)
    room = mask[:NUM_ANGLES, first:first + reach, first:first + reach] == 1.
    angle = np.concatenate([seed_angle, end_angle])
    turn = np.abs(end_angle - angle[:, None])
    turn = np.minimum(turn, 2 * np.pi - turn)
    weight = np.cos(np.minimum(settings.continuity * turn, np.pi / 2))**2
    place = np.empty((NUM_ANGLES, settings.size**2, 2), np.int64)
    num_places = np.array([find_room(empty_mask(settings), own, 2 * settings.seed_distance, places)
                           for own, places in zip(room, place)])
    return Dashes(margin, angle, end, weight, ink, mask, room, place[:, :num_places.max()].copy(),
                  num_places, _draw_disc(settings.disc_radius))


def _draw_dash(settings: Settings, margin: int, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays for a dash that begins at the centre: the dash itself, and the room around
    it that other dashes must not enter."""
    from PIL import Image, ImageDraw
    from scipy.ndimage import grey_dilation

    reach = settings.segment_length + math.ceil(settings.thickness) + margin
    middle = reach * FINER
    picture = Image.new('L', (2 * middle + 1,) * 2)
    tip = tuple(math.ceil(middle + settings.segment_length * FINER * part)
                for part in (math.cos(angle), math.sin(angle)))
    ImageDraw.Draw(picture).line([(middle, middle), tip], fill=255,
                                 width=round(settings.thickness * FINER))
    offset = np.arange(-margin * FINER, margin * FINER + 1)
    is_near = offset[:, None]**2 + offset**2 <= (margin * FINER)**2
    room = grey_dilation(np.asarray(picture), footprint=is_near, mode='constant')
    return tuple(_made_smaller(fine, 2 * reach + 1) for fine in (np.asarray(picture), room))


def _draw_disc(radius: float) -> np.ndarray:
    reach = math.ceil(radius) + 4  # the filter's ringing does not reach further
    offset = np.arange(-reach * FINER, (reach + 1) * FINER)
    is_inside = offset[:, None]**2 + offset**2 <= (radius * FINER)**2
    return _made_smaller(255 * is_inside.astype(np.uint8), 2 * reach + 1)


def _made_smaller(fine: np.ndarray, size: int) -> np.ndarray:
    from PIL import Image

    small = Image.fromarray(fine).resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(small, np.float32) / 255


# Images ##############################################################################


@jit()
def opposite(angle):
    """Return the number of the angle that points in the opposite direction."""
    return angle + np.pi if angle < 0. else angle - np.pi


@jit()
def _draw_image(rng, settings, dashes, label, image, contour, disc):
    """Draw one image of the task into the given arrays, and return the number of attempts at its
    contours."""
    path = np.empty((2, settings.contour_length, 3), np.int64)  # index and position of each dash
    mask = empty_mask(settings)
    attempts = 1
    while not find_contours(rng, settings, dashes, mask, path):
        mask = empty_mask(settings)
        attempts += 1
    contour[:] = 0.
    for which in range(2):
        draw_path(contour[which], dashes, path[which], settings.contour_contrast)
    canvas = np.maximum(contour[0], contour[1])
    for _ in range(settings.num_distractors):
        for _ in range(DISTRACTOR_TRIALS):
            short, trial = np.empty((settings.distractor_length, 3), np.int64), mask.copy()
            if find_distractor(rng, settings, dashes, trial, short):
                draw_path(canvas, dashes, short, settings.distractor_contrast)
                mask = trial
                break
    first = rng.integers(0, 2)
    disc[0] = path[first, 0, 1:]
    disc[1] = path[first if label else 1 - first, -1, 1:]
    for mark in disc:
        stamp(canvas, dashes.disc, mark[0], mark[1], 1.)
    lightest, darkest = canvas.max(), canvas.min()
    for y in range(settings.size):
        for x in range(settings.size):
            image[y, x] = int(255 * (canvas[y, x] - darkest) / (lightest - darkest) + 0.5)
    return attempts


@jit()
def empty_mask(settings):
    """Return the mask of an image without dashes, float32 ``[size, size]``. A mask is 1 where an
    image is occupied, and 0 where it is free. Only the border is occupied."""
    mask = np.ones((settings.size, settings.size), np.float32)
    mask[settings.padding:-settings.padding, settings.padding:-settings.padding] = 0.
    return mask


@jit()
def find_contours(rng, settings, dashes, mask, path):
    """Find places for the dashes of the two long contours, alternately dash by dash. Return whether
    there was room."""
    pivot = np.empty((2, 2), np.int64)
    if not (find_first_seed(rng, settings, dashes, pivot[0], path[0, 0])
            and find_second_seed(rng, settings, dashes, path[0, 0], pivot[1], path[1, 0])):
        return False
    for i in range(1, settings.contour_length):
        for which in range(2):
            if not find_dash(rng, settings, dashes, mask, pivot[which], path[which, i - 1:i + 1]):
                return False
    # Only the last dash of the second contour takes its room, not that of the first.
    take_room(mask, dashes, path[1, -1])
    return True


@jit()
def find_distractor(rng, settings, dashes, mask, path):
    """Find places for the dashes of a distractor, a short contour. Return whether there was room.
    Arguments are as in :func:`find_contours`, with a ``path`` ``[distractor_length, 3]``."""
    pivot = np.empty(2, np.int64)
    if not find_seed(rng, settings, dashes, mask, pivot, path[0]):
        return False
    for i in range(1, settings.distractor_length):
        if not find_dash(rng, settings, dashes, mask, pivot, path[i - 1:i + 1]):
            return False
    take_room(mask, dashes, path[-1])
    return True


@jit()
def find_first_seed(rng, settings, dashes, pivot, seed):
    """Find a random seed, the first dash of a contour, in the middle of an empty image. Return
    whether there was room."""
    for _ in range(SEGMENT_TRIALS):
        number = rng.integers(0, NUM_ANGLES)
        if dashes.num_places[number] == 0:
            return False
        y, x = dashes.place[number, rng.integers(0, dashes.num_places[number])]
        if begin(settings, dashes, number, y, x, pivot, seed):
            return True
    return False


@jit()
def find_second_seed(rng, settings, dashes, first, pivot, seed):
    """Find a random seed of the second contour, at a given distance from ``first``, the seed of the
    first contour. Return whether there was room. Other arguments are as in
    :func:`find_first_seed`."""
    for _ in range(SEGMENT_TRIALS):
        number = rng.integers(0, NUM_ANGLES)
        towards = np.deg2rad(rng.integers(0, 360))
        y = int(np.rint(first[1] + settings.seed_distance * np.sin(towards)))
        x = int(np.rint(first[2] + settings.seed_distance * np.cos(towards)))
        if begin(settings, dashes, number, y, x, pivot, seed):
            return True
    return False


@jit()
def find_seed(rng, settings, dashes, mask, pivot, seed):
    """Find a random seed of a contour anywhere in the image where there is room. Return whether
    there was room. Arguments are as in :func:`find_first_seed`, with the ``mask`` of the image."""
    if (mask <= FREE).sum() < MIN_FREE_SHARE * mask.size:
        return False
    places = np.empty((mask.size, 2), np.int64)
    for _ in range(SEGMENT_TRIALS):
        number = rng.integers(0, NUM_ANGLES)
        num_places = find_room(mask, dashes.room[number], 1, places)
        if num_places == 0:
            return False
        y, x = places[rng.integers(0, num_places)]
        if begin(settings, dashes, number, y, x, pivot, seed):
            return True
    return False


@jit()
def begin(settings, dashes, number, y, x, pivot, seed):
    """Put a seed at row y and column x. Return whether the seed and the point where the contour
    turns are inside the image. ``number`` is the index of the seed; other arguments are as in
    :func:`find_first_seed`."""
    angle, length = dashes.angle[number], settings.segment_length
    end = moved(y, x, angle, length)
    pivot[0], pivot[1] = moved(end[0], end[1], opposite(angle), length + dashes.margin)
    seed[0], seed[1], seed[2] = number, y, x
    return min(end[0], end[1], pivot[0], pivot[1]) >= 0 and max(
        end[0], end[1], pivot[0], pivot[1]) < settings.size


@jit()
def find_dash(rng, settings, dashes, mask, pivot, path):
    """Continue a contour by a dash, and mark the room of the dash before it as occupied. Return
    whether there was room.

    The position of the dash is drawn in proportion to its weight times the free fraction of its
    surroundings.
    """
    last = path[0, 0]
    pivot_y, pivot_x = moved(pivot[0], pivot[1], dashes.angle[last],
                             settings.segment_length + 2 * dashes.margin)
    cumulative = np.empty(len(dashes.end))
    total = 0.
    for i in range(len(dashes.end)):
        y, x = pivot_y + dashes.end[i, 0], pivot_x + dashes.end[i, 1]
        if dashes.weight[last, i] > 0. and 0 <= y < settings.size and 0 <= x < settings.size:
            total += dashes.weight[last, i] * (1. - nearby(mask, y, x, dashes.margin))
        cumulative[i] = total
    if total < 1e-4:
        return False
    for _ in range(SEGMENT_TRIALS):
        i = np.searchsorted(cumulative, rng.random() * total, side='right')
        y, x = pivot_y + dashes.end[i, 0], pivot_x + dashes.end[i, 1]
        if overlap(mask, dashes.mask[NUM_ANGLES + i], y, x) < MAX_OVERLAP:
            take_room(mask, dashes, path[0])
            pivot[0], pivot[1] = pivot_y, pivot_x
            path[1, 0], path[1, 1], path[1, 2] = NUM_ANGLES + i, y, x
            return True
    return False


@jit()
def draw_path(canvas, dashes, path, contrast):
    """Draw the dashes of a contour onto an image, ``canvas``. ``path`` has the index, row and
    column of each dash."""
    for i in range(len(path)):
        stamp(canvas, dashes.ink[path[i, 0]], path[i, 1], path[i, 2], contrast)


@jit()
def take_room(mask, dashes, dash):
    """Mark the room of a dash as occupied in the mask of an image. ``dash`` is the index, row and
    column of the dash."""
    stamp(mask, dashes.mask[dash[0]], dash[1], dash[2], 1.)


@jit()
def moved(y, x, angle, distance):
    """Return the position at ``distance`` from (y, x) in the direction of ``angle``, rounded up to
    the next pixel as in the published generator."""
    return int(np.ceil(y + distance * np.sin(angle))), int(np.ceil(x + distance * np.cos(angle)))


@jit()
def find_room(mask, room, border, places):
    """Find the positions where a seed fits, write them into ``places``, and return their number."""
    reach, number = len(room) // 2, 0
    if not (room[reach:, reach:].any() and room[reach:, :reach + 1].any()
            and room[:reach + 1, reach:].any() and room[:reach + 1, :reach + 1].any()):
        return 0
    for y in range(len(mask)):
        for x in range(len(mask)):
            if has_room(mask, room, border, y, x):
                places[number, 0], places[number, 1] = y, x
                number += 1
    return number


@jit()
def has_room(mask, room, border, y, x):
    """Return whether all of the room of a seed at (y, x) is free and at least ``border`` pixels
    away from the edge of the image. Arguments are as in :func:`find_room`."""
    size, reach = len(mask), len(room) // 2
    for i in range(len(room)):
        for j in range(len(room)):
            if room[i, j]:
                row, column = y + i - reach, x + j - reach
                if 0 <= row < size and 0 <= column < size and (
                        min(row, column) < border or max(row, column) >= size - border
                        or mask[row, column] > FREE):
                    return False
    return True


@jit()
def nearby(mask, y, x, radius):
    """Return the largest value of a mask within ``radius`` pixels of (y, x)."""
    greatest = 0.
    for i in range(max(0, y - radius), min(len(mask), y + radius + 1)):
        for j in range(max(0, x - radius), min(len(mask), x + radius + 1)):
            if (i - y)**2 + (j - x)**2 <= radius**2:
                greatest = max(greatest, mask[i, j])
    return greatest


@jit()
def overlap(mask, patch, y, x):
    """Return the largest sum of a mask and a patch, a small square array that is laid over the mask
    with its centre at (y, x)."""
    greatest, reach = 0., len(patch) // 2
    for i in range(max(0, reach - y), min(len(patch), len(mask) + reach - y)):
        for j in range(max(0, reach - x), min(len(patch), len(mask) + reach - x)):
            greatest = max(greatest, mask[y + i - reach, x + j - reach] + patch[i, j])
    return greatest


@jit()
def stamp(canvas, patch, y, x, contrast):
    """Draw a patch onto an image. The patch is a small square array with its centre at (y, x), and
    is multiplied by ``contrast``. Where the image already has a value, the larger value remains."""
    reach = len(patch) // 2
    for i in range(max(0, reach - y), min(len(patch), len(canvas) + reach - y)):
        for j in range(max(0, reach - x), min(len(patch), len(canvas) + reach - x)):
            row, column = y + i - reach, x + j - reach
            canvas[row, column] = max(canvas[row, column], contrast * patch[i, j])


def main(size: Literal[32, 64, 128] = 32, num_train: int = 160_000, seed: int = 0,
         cache: str = 'data/cache', picture: Path | None = None) -> None:
    """Draw Pathfinder and print its distributions.

    Args:
        size: Pixels of a side.
        num_train: Number of training images; the other parts have an eighth of it each.
        seed: Seed of the images.
        cache: The folder in which they are cached.
        picture: The file for a figure of some of them.
    """
    held_out = max(1, num_train // 8)
    source = GeneratedPathfinder(size, num_train, held_out, held_out, seed=seed, cache=cache)
    train = source.read(size**2).parts['train']
    images = train.tokens.reshape(-1, size, size)
    print(f'{len(images):,} images; {train.label.mean():.1%} have both discs on one contour; '
          f'{(images == 0).mean():.1%} of the pixels are black')
    if picture is not None:
        figure = show_images(images[:10], train.label[:10])
        write_whole(picture, figure.savefig)


def show_images(images: np.ndarray, label: np.ndarray):
    """Draw some images of the task with their labels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout='constrained')
    panels = figure.subplots(2, 5).flatten()
    for axes in panels[len(images):]:
        axes.axis('off')
    for axes, image, own in zip(panels, images, label):
        axes.imshow(image, cmap='gray', vmin=0, vmax=255)
        axes.set(title='one contour' if own else 'two contours', xticks=[], yticks=[])
    return figure


if __name__ == '__main__':
    run_function(main)
