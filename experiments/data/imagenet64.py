"""ImageNet at 64 x 64 pixels, from the files of both releases."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.data.cifar import raster
from experiments.data.image_files import read_png
from experiments.data.sequences import (
    SequenceData,
    Sequences,
    SequenceSource,
    check_at_least,
    read_array_of,
)
from experiments.data.what_was_read import listed
from graphattn.utils.files import new_folder

SIDE = 64
BYTES = 3 * SIDE * SIDE
IMAGES_AT_ONCE = 256
BESIDE = {'train': 'train_64x64', 'val': 'valid_64x64'}
STAMPS = 'made_of.json'


@dataclass(frozen=True)
class ImageNet64(SequenceSource):
    """Colour photographs without classes, in bytes of red, green and blue, pixel by pixel in rows.

    An image has 12,288 bytes.

    One of two releases is read. Chrabaszcz et al. (2017) released the arrays
    ``train_data_batch_1.npz`` to ``_10.npz`` and ``val_data.npz``. Each contains ``data``, uint8
    ``[num_images, 12288]``, with all reds of an image before its greens and blues. Van den Oord et
    al. (2016) released the pictures ``train_64x64/*.png`` and ``valid_64x64/*.png``, on which the
    papers estimate densities.

    The images are converted once to a single array on disk, which is memory-mapped. The last
    fiftieth of the training images is for development. Testing uses the validation images, as in
    the papers.

    Args:
        path (str): The folder with the arrays or with the two folders of pictures.
        cache (str): The folder of the converted arrays (16 GB), which are named by ``path``. The
            original files may then be deleted. If the size or the time of an original file changes,
            the arrays are made again.
    """

    path: str
    cache: str = 'data/cache/imagenet64'

    def read(self, max_length: int) -> SequenceData:
        check_at_least(BYTES, max_length=max_length)
        folder = Path(self.path)
        name = blake2b(os.fsencode(folder.resolve()), digest_size=8).hexdigest()
        cache, files = Path(self.cache) / name, _stamps(folder)
        if files and cache.exists() and _stamps_in(cache) != files:
            shutil.rmtree(cache)
        if not cache.exists():
            with new_folder(cache) as temporary:
                for part, images in (('train', _images(folder, 'train')),
                                     ('val', _images(folder, 'val'))):
                    _write(images, temporary / f'{part}.bin')
                (temporary / STAMPS).write_text(json.dumps(files))
        learn, test = (_mapped(cache / f'{part}.bin') for part in ('train', 'val'))
        first = len(learn) * 49 // 50
        return SequenceData('ImageNet at 64 x 64 pixels', 256, 1, {
            part: Sequences.of_equal_length(images, np.zeros(len(images)))
            for part, images in (('train', learn[:first]), ('dev', learn[first:]),
                                 ('test', test))}, (SIDE, SIDE, 3))


def _stamps(folder: Path) -> list[list]:
    """Return the name, size and time of each file in a folder as JSON types, which show whether a
    file has changed."""
    arrays = [path for part in BESIDE for path in sorted(folder.glob(f'{part}_data*.npz'))]
    pictures = [path for beside in BESIDE.values()
                for path in listed(folder / beside, ('.png',)).files]
    return [[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns]
            for path in arrays + pictures]


def _stamps_in(cache: Path) -> list[list] | None:
    try:
        return json.loads((cache / STAMPS).read_text())
    except (OSError, ValueError):
        return None


def _images(folder: Path, part: str) -> Iterator[np.ndarray]:
    """Yield the images of a part of a release in chunks, uint8 ``[num_images, 12288]`` in raster
    order."""
    arrays = sorted(folder.glob(f'{part}_data*.npz'))
    pictures = listed(folder / BESIDE[part], ('.png',)).files
    if not arrays and not pictures:
        raise ValueError(f"'path' must contain {part}_data*.npz, or the folders train_64x64 and "
                         f"valid_64x64 with PNG files (got {folder}, which contains neither)")
    for path in tqdm(arrays, desc=f'reading {part}', unit=' files', disable=None):
        yield raster(read_array(path).reshape(-1, 3, SIDE * SIDE))
    if not arrays:
        for begin in tqdm(range(0, len(pictures), IMAGES_AT_ONCE), desc=f'reading {part}',
                          unit=f' x {IMAGES_AT_ONCE} pictures', disable=None):
            yield np.stack([read_png(path, SIDE, 'RGB').reshape(-1)
                            for path in pictures[begin:begin + IMAGES_AT_ONCE]])


def read_array(path: Path) -> np.ndarray:
    """Read the images of a released array, uint8 ``[num_images, 12288]``, without unpickling."""
    images = read_array_of(path, 'data', ('data',))
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != BYTES:
        raise ValueError(f"{path}: expected 'data' as uint8 of shape [num_images, {BYTES}] (got "
                         f"{images.dtype} of shape {images.shape})")
    return images


def _write(images: Iterator[np.ndarray], path: Path) -> None:
    with path.open('wb') as file:
        for some in images:
            some.tofile(file)


def _mapped(path: Path) -> np.ndarray:
    try:
        size = path.stat().st_size
        if size == 0 or size % BYTES:
            raise ValueError(f'its {size:,} bytes are not a whole number of images')
        return np.memmap(path, dtype=np.uint8, mode='r').reshape(-1, BYTES)
    except (OSError, ValueError) as error:
        raise ValueError(f"'cache' is damaged ({path}: {error}); delete {path.parent}, and the "
                         f"cache is built again") from error
