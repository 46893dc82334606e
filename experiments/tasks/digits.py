"""Handwritten digits as sequences of 64 pixels, a classification task."""

from collections.abc import Iterator
from pathlib import Path

import lightning as L
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from experiments.data.batch import TokenBatch
from experiments.data.digits import NUM_CLASSES, NUM_PIXELS, split_digits
from experiments.data.sequences import token_rows
from experiments.runs.figures import received_attention
from experiments.tasks.batch_stream import ResumableLoader, ShuffledEpochs, each_once
from experiments.tasks.long_range import unlabelled_batches
from graphattn.layers import GraphAttention


class Digits(L.LightningDataModule):
    """The 1,797 images of 8x8 pixels that ship with scikit-learn, in a fixed stratified split::

        0  0  5 13  9  1  0  0         tokens: 64 grey levels from 0 to 16, row by row
        0  0 13 15 10 15  5  0         label:  0
        0  3 15  2  0 11  8  0
        ...                            1,257 for training, 180 for development, 360 for testing

    Args:
        batch_size (int): Number of images per step and process.
    """

    def __init__(self, batch_size: int = 64):
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"'batch_size' must be positive (got {batch_size})")
        self.batch_size = batch_size
        self.train = None

    def setup(self, stage: str | None = None) -> None:
        if self.train is None:  # fit calls setup, and so does the test at its end
            self.train, self.val, self.test = (
                TensorDataset(torch.from_numpy(part[:, :-1]), torch.from_numpy(part[:, -1]))
                for part in split_digits())

    def train_dataloader(self) -> DataLoader:
        return ResumableLoader(self.train, self.batch_size, collate_fn=collate_images,
                               sampler=ShuffledEpochs(self.train, self.batch_size, self.trainer))

    def val_dataloader(self) -> DataLoader:
        return self._in_order(self.val)

    def test_dataloader(self) -> DataLoader:
        return self._in_order(self.test)

    def unlabelled(self, path: Path, size: int) -> Iterator[tuple[list[str], TokenBatch]]:
        """Yield batches of ``size`` unlabelled images with their row numbers, from a NumPy array
        whose rows are 64 grey levels."""
        return unlabelled_batches(_images(path), size)

    def figures(self, model: nn.Module) -> dict[str, Figure]:
        """Draw how many queries attend to each pixel of some test images, for every head of a model
        (SBM, Fig. 7). Return the figure by name.

        If the heads do not attend along graphs, there is no figure.
        """
        if not any(isinstance(module, GraphAttention) for module in model.modules()):
            return {}
        image, label = self.test.tensors
        first_of_class = [int((label == digit).nonzero()[0]) for digit in range(0, NUM_CLASSES, 4)]
        return {'received_attention': received_attention(
            model, image[first_of_class], [f'{digit}' for digit in label[first_of_class].tolist()],
            shape=(8, 8))}

    def _in_order(self, data: Dataset) -> DataLoader:
        return DataLoader(data, 2 * self.batch_size, sampler=each_once(data, self.trainer),
                          collate_fn=collate_images)


def _images(path: Path) -> Iterator[tuple[str, tuple[np.ndarray]]]:
    for number, (image,) in token_rows(path):
        if len(image) != NUM_PIXELS:
            raise ValueError(f'{path}, row {number}: expected {NUM_PIXELS} grey levels (got '
                             f'{len(image)})')
        yield number, (image,)


def collate_images(samples: list[tuple[Tensor, Tensor]]) -> TokenBatch:
    image, label = (torch.stack(part) for part in zip(*samples))
    return TokenBatch(image.flatten(), torch.arange(len(image) + 1) * image.size(1), label)
