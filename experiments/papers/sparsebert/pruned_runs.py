"""Trainings along the pairs that remain after pruning by soft masks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import lightning as L
from torch import Tensor

from experiments.modules import LanguageModelling
from experiments.papers.sparsebert.text_runs import TextRuns, scores
from experiments.papers.study import restored
from experiments.tasks import MaskedLanguage
from graphattn.patterns import Mask, prune, prune_at_random, save_masks
from graphattn.sources import PatternSource


@dataclass(frozen=True)
class PrunedRuns:
    """Models whose soft masks are pruned to hard masks, and their results along the remaining
    pairs.

    The pruned model is the model with which the soft masks P were learned, because the mask of a
    head suits only this head.

    Args:
        runs (TextRuns): The runs whose soft masks are pruned.
    """

    runs: TextRuns

    @cached_property
    def pretrained(self) -> Path:
        """Return the folder of the pre-training that learned the soft masks."""
        return self.runs.soft()

    @cached_property
    def probability(self) -> Tensor:
        """Return the soft masks P of the pre-training, ``[heads, n, n]``."""
        return self._restored[0].model.encoder.source.probability().detach()

    def masks(self, percent: float, random_seed: int | None = None) -> tuple[Mask, ...]:
        """Return a mask for each head without ``percent`` of its pairs (SparseBERT, Sec. 3.4).

        The least important pairs by P are removed. With ``random_seed``, random pairs are removed
        instead.
        """
        if random_seed is None:
            return prune(self.probability, percent / 100)
        heads, size, _ = self.probability.shape
        return prune_at_random(heads, size, percent / 100, random_seed)

    def tuned(self, task: str, seed: int, percent: float,
              random_seed: int | None = None) -> dict[str, float]:
        """Return the scores of a fine-tuning along the masks of :meth:`masks`."""
        how = 'P' if random_seed is None else f'random{random_seed}'
        name = f'pruned{percent:g}-{how}'
        path = self.runs.study.out / self.runs.study.scale / 'masks' / f'{name}.npz'
        save_masks(path, self.masks(percent, random_seed))
        return scores(self.runs.tuned(self.pretrained, task, seed, name=name, masks=path))

    def loss(self, masks: tuple[Mask, ...]) -> float:
        """Return the loss on masked tokens of development text along ``masks``, without training
        along them."""
        training, data, trainer = self._restored
        training.model.encoder.source = PatternSource(masks)
        metrics, = trainer.test(training, data, verbose=False)
        return metrics['test/mlm_loss']

    @cached_property
    def _restored(self) -> tuple[LanguageModelling, MaskedLanguage, L.Trainer]:
        return restored(self.pretrained)
