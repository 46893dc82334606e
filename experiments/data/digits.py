"""The handwritten digits that ship with scikit-learn."""

from dataclasses import dataclass

import numpy as np

from experiments.data.sequences import (
    PARTS,
    SequenceData,
    Sequences,
    SequenceSource,
    check_at_least,
)

NUM_PIXELS, NUM_LEVELS, NUM_CLASSES = 64, 17, 10


@dataclass(frozen=True)
class DigitImages(SequenceSource):
    """1,797 images of 8 x 8 grey levels from 0 to 16, pixel by pixel in rows.

    The images replace those of Long Range Arena if CIFAR-10 is unavailable.
    """

    def read(self, max_length: int) -> SequenceData:
        check_at_least(NUM_PIXELS, max_length=max_length)
        return SequenceData('stand-in for CIFAR-10: digits of 8 x 8 pixels', NUM_LEVELS,
                            NUM_CLASSES, {
                                part: Sequences.of_equal_length(rows[:, :-1].astype(np.uint8),
                                                                rows[:, -1])
                                for part, rows in zip(PARTS, split_digits())}, (8, 8, 1))


def split_digits() -> list[np.ndarray]:
    """Return the rows of 64 grey levels and the class, int64 ``[num_images, 65]``, for training,
    development and testing, by a fixed, stratified split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    image, label = load_digits(return_X_y=True)
    data = np.column_stack([image.astype(np.int64), label])
    train, held_out = train_test_split(data, train_size=0.7, stratify=label, random_state=0)
    val, test = train_test_split(held_out, test_size=2 / 3, stratify=held_out[:, -1],
                                 random_state=0)
    return [train, val, test]
