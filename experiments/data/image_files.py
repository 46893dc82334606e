"""Images in folders: each class has a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from experiments.data.labels import given_parts
from experiments.data.sequences import LabelledSequences, SequenceData, SequenceSource, divided
from experiments.data.what_was_read import listed, number_of, tell

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = ('.bmp', '.gif', '.jfif', '.jpe', '.jpeg', '.jpg', '.pbm', '.pgm', '.png', '.pnm',
            '.ppm', '.tif', '.tiff', '.webp')
FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
MAX_PIXELS = 2**26  # maximum number of pixels of an image before it is resized
SEEN = '(rotated by EXIF, transparent pixels white)'
MODES = ('1', 'L', 'LA', 'P', 'PA', 'RGB', 'RGBA', 'CMYK', 'YCbCr')  # 8 bits for each value


@dataclass(frozen=True)
class ImageFiles(SequenceSource):
    """Images of classes, pixel by pixel in rows. A pixel is one byte, or three bytes in colour::

        flowers/train/rose/1.jpg        flowers/train/rose/a/2.jpg        flowers/train/tulip/7.png

    Images are rotated by their EXIF orientation. Transparent pixels become white.

    Args:
        path (str): The training folder, with one folder of images per class.
        val (str, optional): The development folder. If omitted, a tenth of the images in ``path``.
        test (str, optional): The test folder. If omitted, another tenth of the images in ``path``.
        size (tuple of int, optional): Rows and columns to which images are resized. If omitted, all
            images must have the same size.
        colour (bool): Whether to read red, green and blue of each pixel instead of its grey level.
        classes (list of str, optional): The names of the classes in order. If omitted, the names of
            the training folders.
        seed (int): Seed of the division into parts.
    """

    path: str
    val: str | None = None
    test: str | None = None
    size: tuple[int, int] | None = None
    colour: bool = False
    classes: list[str] | None = None
    seed: int = 0

    def __post_init__(self):
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"'size' must be two positive integers, rows and columns, such as "
                             f"[28, 28] (got {self.size})")

    def read(self, max_length: int) -> SequenceData:
        sizes: dict[tuple[int, int], Path] = {}
        parts = {part: self._read_part(path, sizes)
                 for part, path in given_parts(self.path, self.val, self.test).items()}
        (size, _), = sizes.items()
        data = divided('images', parts, 256, self.classes, self.seed)
        return data._replace(shape=(*size, 3 if self.colour else 1))

    def unlabelled(self, path: Path) -> Iterator[tuple[str, tuple[np.ndarray]]]:
        """Yield the name and the bytes of each image below a folder, or of the image in a single
        file."""
        files, left_out = ([path], {}) if path.is_file() else listed(path, SUFFIXES)
        _check_some(files, path)
        tell(path, f'{number_of("image", len(files))} {SEEN}', left_out)
        sizes: dict[tuple[int, int], Path] = {}
        for file in files:
            name = file.name if path.is_file() else str(file.relative_to(path))
            yield name, (self._read_image(file, sizes),)

    def _read_part(self, folder: Path, sizes: dict[tuple[int, int], Path]) -> LabelledSequences:
        classes = sorted(entry for entry in folder.glob('*')
                         if entry.is_dir() and not entry.name.startswith('.'))
        if not classes:
            raise ValueError(f"{folder}: expected one folder of images for each class (got no "
                             f"folders)")
        files, left_out = listed(folder, SUFFIXES)
        inside = [file for file in files if file.parent != folder]
        left_out['outside the folders of classes'] = len(files) - len(inside)
        labels = [file.relative_to(folder).parts[0] for file in inside]
        for entry in sorted({entry.name for entry in classes} - {*labels}):
            _check_some([], folder / entry)
        tell(folder, f'{number_of("image", len(inside))} in {number_of("folder", len(classes))} '
                     f'{SEEN}', left_out)
        images = [self._read_image(file, sizes) for file in tqdm(
            inside, desc=f'reading {folder.name}', unit=' images', disable=None)]
        if len(images) > 1 and all(np.array_equal(images[0], image) for image in images[1:]):
            raise ValueError(f"{folder}: expected different images (got {len(images):,} identical "
                             f"images {SEEN}); transparent pixels are read as white, so put white "
                             f"drawings on a dark background")
        return LabelledSequences(images, labels, lambda place: str(inside[place]), str(folder))

    def _read_image(self, path: Path, sizes: dict[tuple[int, int], Path]) -> np.ndarray:
        """Return the bytes of an image, whose size must be the only one in ``sizes``."""
        image = read_image(path, self.size, self.colour)  # sizes has the first image of a size
        sizes.setdefault(image.shape[:2], path)
        if len(sizes) > 1:
            size, other = next(iter(sizes.items()))
            raise ValueError(f"{path} has {_pixels(image.shape)} and {other} has {_pixels(size)}; "
                             f"pass 'size', the rows and columns to which all images are resized")
        return image.reshape(-1)


def read_image(path: Path, size: tuple[int, int] | None = None,
               colour: bool = False) -> np.ndarray:
    """Read an image, and return its pixels, uint8 ``[rows, columns]``, or ``[rows, columns, 3]`` in
    ``colour``."""
    from PIL import Image, ImageOps

    try:
        # The image is opened as a file, because Pillow 13 misreads rotated TIFFs that it maps from
        # a path.
        with path.open('rb') as file, Image.open(file, formats=FORMATS) as image:
            mode = image.mode
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"expected at most {MAX_PIXELS:,} pixels (got {image.height:,} x "
                                 f"{image.width:,})")
            if mode in MODES:
                image = _on_white(ImageOps.exif_transpose(image))
                image = image.convert('RGB' if colour else 'L')
                if size is not None:
                    image = image.resize(size[::-1])
                return np.asarray(image)
    except Exception as error:  # whatever the decoder raises
        raise ValueError(f"{path} cannot be read as an image ({error}); remove or replace this "
                         f"file") from error
    raise ValueError(f"{path}: expected an image with 8 bits per value (got mode {mode}); convert "
                     f"the image, for example to PNG with mode RGB")


def read_png(path: Path, size: int, mode: str) -> np.ndarray:
    """Read a square PNG picture, uint8 ``[size, size]`` of mode L, ``[size, size, 3]`` of RGB."""
    from PIL import Image

    try:
        with Image.open(path, formats=['PNG']) as picture:
            if (picture.size, picture.mode) != ((size, size), mode):
                raise ValueError(f'got {picture.size[0]} x {picture.size[1]} pixels of mode '
                                 f'{picture.mode}')
            # verify() compares checksums, and leaves the picture unusable, so it is opened again
            picture.verify()
        with Image.open(path, formats=['PNG']) as picture:
            return np.asarray(picture)
    except Exception as error:  # whatever the decoder raises
        raise ValueError(f'{path}: expected a PNG picture of {size} x {size} pixels of mode {mode} '
                         f'({error}); remove or replace this file') from error


def _pixels(shape: tuple[int, ...]) -> str:
    return f'{shape[0]} x {shape[1]} pixels'


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    from PIL import Image

    image = image.convert('RGBA')
    return Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)


def _check_some(files: list[Path], folder: Path) -> None:
    if not files:
        raise ValueError(f"{folder}: expected a folder of images (got none with the suffix "
                         f"{', '.join(SUFFIXES)})")
