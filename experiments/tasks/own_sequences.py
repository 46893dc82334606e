"""Classification of images and of token ids in the user's files."""

import sys

from jsonargparse import Namespace

from experiments.data.image_files import ImageFiles
from experiments.data.sequences import SequenceData, SequenceSource
from experiments.data.token_arrays import TokenArrays
from experiments.tasks.long_range import LongRange

MODEL = 'model.init_args.model.init_args'


def fit_model(options: Namespace, num_classes: int, **sizes: int) -> None:
    """Write the sizes that the data require into the options of a run.

    The number of classes is set, and sizes of the encoder that are smaller than in ``sizes`` are
    raised. Options that the model lacks are skipped.
    """
    if f'{MODEL}.num_classes' in options:
        options[f'{MODEL}.num_classes'] = num_classes
    for name, size in sizes.items():
        option = f'{MODEL}.encoder.init_args.{name}'
        if option in options:
            options[option] = max(options[option], size)


class OwnSequences(LongRange):
    """Sequences from the user's files. Classes, symbols and lengths are read from the files.

    Args:
        source (SequenceSource): The source of the sequences.
        classes (list of str, optional): The names of the classes in order. If omitted, the names
            are read from the files.
        seed (int): Seed of the training order.
        batch_size (int): Number of examples per step and process.
        max_length (int): Maximum number of tokens of a sequence.
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
        """Write values into the options of a run: the classes of the files, and the sizes that the
        model needs."""
        data = self.read()
        self.classes = list(data.classes)
        options['data.init_args.classes'] = self.classes
        fit_model(options, data.num_classes, num_tokens=data.num_tokens, max_length=data.longest)


class ImageFolder(OwnSequences):
    """Images as sequences of bytes. The images of each class are in one folder::

        flowers/rose/1.jpg        flowers/rose/2.jpg        flowers/tulip/7.png

    Args:
        path, val, test, size, colour, classes: As in
            :class:`experiments.data.image_files.ImageFiles`.
        seed (int): Seed of the division into parts and of the training order.
        batch_size (int): Number of images per step and process.
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
    """Sequences of token ids with their classes, from ``.npz`` or ``.npy`` files.

    Args:
        path, val, test, padding, classes: As in :class:`experiments.data.token_arrays.TokenArrays`.
        seed (int): Seed of the division into parts and of the training order.
        max_length (int, optional): Maximum number of tokens of a sequence. Longer sequences are cut
            at the end.
        batch_size (int): Number of sequences per step and process.
    """

    def __init__(self, path: str, val: str | None = None, test: str | None = None,
                 padding: int | None = None, classes: list[str] | None = None, seed: int = 0,
                 max_length: int | None = None, batch_size: int = 32):
        super().__init__(TokenArrays(path, val, test, padding, classes, seed), classes, seed,
                         batch_size, sys.maxsize if max_length is None else max_length)
