"""Density estimation of images, and images that are sampled from the model."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from experiments.data.sequences import SequenceSource
from experiments.runs.sampling import pictures, sample
from experiments.tasks.long_range import LongRange

SAMPLES = 8


class Images(LongRange):
    """Images of one size, as sequences of bytes in raster order.

    At the end of a run, images are sampled from the model.

    Args:
        source (SequenceSource): The source of the images. It must state the shape of the images.
        num_samples (int): Number of sampled images in ``samples.png``; 0 for none.
        **kwargs: Arguments of :class:`LongRange`. There is no [CLS].

    Raises:
        ValueError: As :class:`LongRange`, the model's vocabulary has no start token, or the source
            has no images.
    """

    def __init__(self, source: SequenceSource, max_length: int, num_samples: int = SAMPLES,
                 **kwargs):
        super().__init__(source, max_length, **kwargs)
        if num_samples < 0:
            raise ValueError(f"'num_samples' must be at least 0 (got {num_samples})")
        if self.cls:
            raise ValueError("'cls' must be False for images, because a generated image begins "
                             "with its first pixel; omit 'cls'")
        self.num_samples = num_samples

    def prepare_data(self) -> None:
        super().prepare_data()
        num_tokens = self.trainer.lightning_module.model.encoder.token_embedding.num_embeddings
        if num_tokens != self.data.num_tokens + 1:
            raise ValueError(f"'num_tokens' of the encoder must be {self.data.num_tokens + 1}, for "
                             f"the symbols of {self.data.about} and a start token (got "
                             f"{num_tokens}); build the encoder with "
                             f"num_tokens={self.data.num_tokens + 1}")
        if self.data.shape is None:
            raise ValueError(f"'source' must be a data source of images (got "
                             f"{type(self.source).__name__})")

    def figures(self, model: nn.Module) -> dict[str, Figure]:
        """Draw test images, and the same number of images that are sampled from the model. Return
        the figure by name."""
        if not self.num_samples:
            return {}
        length, num_tokens = int(np.prod(self.data.shape)), self.data.num_tokens
        device = model.encoder.token_embedding.weight.device
        drawn = sample(model, num_tokens, length, self.num_samples,
                       generator=torch.Generator(device).manual_seed(self.seed))
        real = self.data.parts['test']
        rows = {'for testing': np.stack([real.sequence(number) for number in
                                         range(min(self.num_samples, real.num_sequences))]),
                'drawn': drawn.cpu().numpy()}
        return {'samples': pictures(rows, self.data.shape, num_tokens)}
