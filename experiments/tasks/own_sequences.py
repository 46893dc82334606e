"""Classes of images, and of sequences of token ids, from files of one's own."""

from __future__ import annotations

import sys

from jsonargparse import Namespace

from experiments.data.image_files import ImageFiles
from experiments.data.sequences import SequenceData, SequenceSource
from experiments.data.token_arrays import TokenArrays
from experiments.tasks.long_range import LongRange
from experiments.tasks.own_data import fit_model


class OwnSequences(LongRange):
    """Sequences described by their files alone: classes, symbols and lengths.

    Args:
        source (SequenceSource): Where they come from.
        classes (list of str, optional): Their names in order; if omitted, the files say them.
        seed (int): Which order.
        batch_size (int): Examples per step and process.
        max_length (int): The most tokens of a sequence.
    """

    def __init__(self, source: SequenceSource, classes: list[str] | None, seed: int,
                 batch_size: int, max_length: int = sys.maxsize):
        super().__init__(source, max_length, batch_size=batch_size, seed=seed)
        self.classes = classes

    def read(self) -> SequenceData:
        data = super().read()
        self.max_length = data.longest
        return data

    def fill_options(self, options: Namespace) -> None:
        """Write the findings of the files into the options of a run, and the sizes that its model
        needs."""
        data = self.read()
        self.classes = list(data.classes)
        options['data.init_args.classes'] = self.classes
        fit_model(options, data.num_classes, num_tokens=data.num_tokens, max_length=data.longest)


class ImageFolder(OwnSequences):
    """Images, a folder of them for each class, as sequences of bytes::

        flowers/rose/1.jpg        flowers/rose/2.jpg        flowers/tulip/7.png

    Args:
        path, val, test, size, colour, classes: As
            :class:`experiments.data.image_files.ImageFiles`.
        seed (int): Which images are for development and testing, and the order of training.
        batch_size (int): Images per step and process.

    Raises:
        ValueError: As there, or a value is out of range.
    """

    def __init__(self, path: str, val: str | None = None, test: str | None = None,
                 size: tuple[int, int] | None = None, colour: bool = False,
                 classes: list[str] | None = None, seed: int = 0, batch_size: int = 32):
        super().__init__(ImageFiles(path, val, test, size, colour, classes, seed), classes, seed,
                         batch_size)

    def fill_options(self, options: Namespace) -> None:
        super().fill_options(options)
        options['data.init_args.size'] = self.read().shape[:2]


class TokenIds(OwnSequences):
    """Sequences of token ids and their classes, from ``.npz`` or ``.npy``.

    Args:
        path, val, test, padding, classes: As
            :class:`experiments.data.token_arrays.TokenArrays`.
        seed (int): Which sequences are for development and testing, and the order of training.
        max_length (int, optional): What is longer is cut there, at its end.
        batch_size (int): Sequences per step and process.

    Raises:
        ValueError: As there, or a value is out of range.
    """

    def __init__(self, path: str, val: str | None = None, test: str | None = None,
                 padding: int | None = None, classes: list[str] | None = None, seed: int = 0,
                 max_length: int | None = None, batch_size: int = 32):
        super().__init__(TokenArrays(path, val, test, padding, classes, seed), classes, seed,
                         batch_size, sys.maxsize if max_length is None else max_length)
