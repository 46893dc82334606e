"""CIFAR-10 from the files of its binary version, in grey and in colour."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.data.sequences import (
    SequenceData,
    Sequences,
    SequenceSource,
    check_at_least,
    check_labels,
)
from experiments.data.what_was_read import readable

IMAGES_PER_FILE = 10_000
PIXELS = 32 * 32
GREY = np.array([0.2989, 0.5870, 0.1140], np.float32)


@dataclass(frozen=True)
class Cifar10(SequenceSource):
    """Grey photographs of ten classes, pixel by pixel in rows.

    A file contains 10,000 images. Each image is a byte for the class, and then 1,024 bytes each for
    red, green and blue. The last tenth of the five training files is for development.

    Args:
        path (str): The folder with ``data_batch_1.bin`` to ``data_batch_5.bin`` and
            ``test_batch.bin``, from ``cifar-10-binary.tar.gz``.
    """

    path: str

    def read(self, max_length: int) -> SequenceData:
        check_at_least(PIXELS, max_length=max_length)
        return _of_files(self.path, grey, 'CIFAR-10, grey', (32, 32, 1))


@dataclass(frozen=True)
class CifarColours(SequenceSource):
    """Colour photographs of ten classes, pixel by pixel in rows, as red, green and blue.

    The 3,072 bytes of a photograph are in the order for density estimation. Files and parts are
    those of :class:`Cifar10`.

    Args:
        path (str): The folder of the files.
    """

    path: str

    def read(self, max_length: int) -> SequenceData:
        check_at_least(3 * PIXELS, max_length=max_length)
        return _of_files(self.path, raster, 'CIFAR-10', (32, 32, 3))


def _of_files(path: str, of_colours: Callable[[np.ndarray], np.ndarray], about: str,
              shape: tuple[int, int, int]) -> SequenceData:
    folder = Path(path)
    learn = [read_cifar(folder / f'data_batch_{number}.bin') for number in range(1, 6)]
    image, label = (np.concatenate(part) for part in zip(
        *((of_colours(colours), label) for colours, label in learn)))
    first = len(label) * 9 // 10
    colours, test_label = read_cifar(folder / 'test_batch.bin')
    return SequenceData(about, 256, 10, {
        'train': Sequences.of_equal_length(image[:first], label[:first]),
        'dev': Sequences.of_equal_length(image[first:], label[first:]),
        'test': Sequences.of_equal_length(of_colours(colours), test_label)}, shape)


def read_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the colours of 10,000 images, uint8 ``[10000, 3, 1024]``, and their classes."""
    length = IMAGES_PER_FILE * (1 + 3 * PIXELS)
    with readable(f'{path} cannot be read',
                  "'path' must be the folder of the binary version of CIFAR-10"):
        found = path.stat().st_size
        content = path.read_bytes() if found == length else b''
    if len(content) != length:
        raise ValueError(f'{path}: expected {IMAGES_PER_FILE:,} images in {length:,} bytes (got '
                         f'{found:,} bytes)')
    rows = np.frombuffer(content, np.uint8).reshape(IMAGES_PER_FILE, -1)
    label = rows[:, 0].astype(np.int64)
    check_labels(label, 10, str(path))
    return rows[:, 1:].reshape(-1, 3, PIXELS), label


def raster(image: np.ndarray) -> np.ndarray:
    """Convert colours ``[num_images, 3, num_pixels]`` to uint8 ``[num_images, 3 * num_pixels]``,
    with the three colours of a pixel next to each other."""
    return np.ascontiguousarray(image.transpose(0, 2, 1)).reshape(len(image), -1)


def grey(image: np.ndarray) -> np.ndarray:
    """Convert colours ``[num_images, 3, num_pixels]`` to grey levels, uint8 ``[num_images,
    num_pixels]``, as TensorFlow's ``rgb_to_grayscale`` in Long Range Arena does."""
    levels = np.empty((len(image), image.shape[2]), np.uint8)
    # a few images at a time, because they are converted to float32
    for first in range(0, len(image), 1000):
        some = image[first:first + 1000].astype(np.float32) / 255
        levels[first:first + 1000] = np.einsum('nck,c->nk', some, GREY) * 255.5
    return levels
