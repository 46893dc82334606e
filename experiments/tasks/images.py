"""Density estimation of images, and images that are sampled from the model."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from experiments.data.sequences import SequenceSource
from experiments.tasks.long_range import LongRange
from graphattn.decoding import KeyValueCache
from graphattn.models import CausalLanguageModel

SAMPLES = 8


class Images(LongRange):
    """Images of one size, as sequences of bytes in raster order.

    At the end of a run, images are sampled from the model.

    Args:
        source (SequenceSource): The source of the images. It must state the shape of the images.
        num_samples (int): Number of sampled images in ``samples.png``; 0 for none.
        **kwargs: Arguments of :class:`LongRange`. There is no [CLS].
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


@torch.no_grad()
def sample(model: CausalLanguageModel, start: int, length: int, number: int, *,
           generator: torch.Generator | None = None) -> Tensor:
    """Sample sequences from a language model, symbol by symbol."""
    was_training = model.training
    model.eval()
    device = model.encoder.token_embedding.weight.device
    cache, ptr = KeyValueCache(length, number), torch.arange(number + 1, device=device)
    drawn = torch.full((number, length + 1), start, device=device)
    for place in tqdm(range(length), desc='sampling', unit=' symbols', disable=None, leave=False):
        logits = model(drawn[:, place], ptr, placement=cache.step(ptr))
        probability = logits[:, :start].float().softmax(dim=1)
        drawn[:, place + 1] = probability.multinomial(1, generator=generator).squeeze(1)
    model.train(was_training)
    return drawn[:, 1:]


def pictures(rows: dict[str, np.ndarray], shape: tuple[int, int, int], levels: int) -> Figure:
    most = max(len(images) for images in rows.values())
    figure = Figure(figsize=(1.1 * most + 1.4, 1.2 * len(rows) + .3), layout='constrained')
    for panels, (name, images) in zip(figure.subplots(len(rows), most, squeeze=False),
                                      rows.items()):
        for axes, image in zip(panels, images):
            axes.imshow(image.reshape(shape).squeeze() / (levels - 1), cmap='gray', vmin=0, vmax=1)
        for axes in panels:
            axes.set(xticks=[], yticks=[])
        for axes in panels[len(images):]:
            axes.set_axis_off()
        panels[0].set_ylabel(name, rotation=0, ha='right', va='center', fontsize='small')
    return figure
