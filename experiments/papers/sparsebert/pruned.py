"""Models whose soft masks P are pruned to hard masks, and their results along what remains.

The pruned model is the one that learned P, because the mask of a head suits only this head.
"""

import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from experiments.papers.sparsebert.texts import LOSS, Pretrainings, Texts, scores
from experiments.papers.study import restored, tested
from graphattn.patterns import Mask, prune, prune_at_random, save_masks
from graphattn.sources import PatternSource


@dataclass(frozen=True)
class Pruned:
    """Prunings of the model of a study of text."""

    texts: Pretrainings | Texts

    @cached_property
    def pretrained(self) -> Path:
        return self.texts.soft()

    @cached_property
    def probability(self) -> Tensor:
        """The soft masks P, ``[heads, n, n]``."""
        return self._restored[0].model.encoder.source.probability().detach()

    def masks(self, percent: float, random_seed: int | None = None) -> tuple[Mask, ...]:
        """Remove the least important pairs of each head (SparseBERT, Sec. 3.4), or random ones."""
        if random_seed is None:
            return prune(self.probability, percent / 100)
        heads, size, _ = self.probability.shape
        return prune_at_random(heads, size, percent / 100, random_seed)

    def tuned(self, task: str, seed: int, percent: float,
              random_seed: int | None = None) -> dict[str, float]:
        how = 'P' if random_seed is None else f'random{random_seed}'
        name = f'pruned{percent:g}-{how}'
        path = self.texts.shared / 'masks' / f'{name}.npz'
        save_masks(path, self.masks(percent, random_seed))
        return scores(self.texts.tuned(self.pretrained, task, seed, name=name, masks=path))

    def loss(self, masks: tuple[Mask, ...]) -> float:
        """Return the loss on masked tokens along masks, without training along them."""
        self._restored[0].model.encoder.source = PatternSource(masks)
        return tested(self._restored, 'mlm_loss')

    @cached_property
    def _restored(self) -> tuple:
        return restored(self.pretrained)


def better(task: str, by_name: dict[str, list[float]]) -> str | None:
    """Return which of two results is better, less loss or more score; ``None`` without a first."""
    (first, own), (second, other) = by_name.items()
    if not own:
        return None
    gain = statistics.mean(own) - statistics.mean(other)
    gain = -gain if task == LOSS else gain
    return first if gain > 0 else second if gain < 0 else 'neither'
