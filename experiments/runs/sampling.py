"""Sampling of images from a language model, byte by byte."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from graphattn.decoding import KeyValueCache
from graphattn.models import CausalLanguageModel


@torch.no_grad()
def sample(model: CausalLanguageModel, start: int, length: int, number: int, *,
           temperature: float = 1., generator: torch.Generator | None = None) -> Tensor:
    """Sample sequences from a language model, symbol by symbol."""
    was_training = model.training
    model.eval()
    device = model.encoder.token_embedding.weight.device
    cache, ptr = KeyValueCache(length, number), torch.arange(number + 1, device=device)
    drawn = torch.full((number, length + 1), start, device=device)
    for place in tqdm(range(length), desc='sampling', unit=' symbols', disable=None, leave=False):
        logits = model(drawn[:, place], ptr, placement=cache.step(ptr))
        logits = logits[:, :start].float() / temperature
        drawn[:, place + 1] = logits.softmax(dim=1).multinomial(1, generator=generator).squeeze(1)
    model.train(was_training)
    return drawn[:, 1:]


def pictures(rows: dict[str, np.ndarray], shape: tuple[int, int, int], levels: int) -> Figure:
    """Draw images in rows, with the name of each row beside it."""
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
