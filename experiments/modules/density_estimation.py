"""Estimating the density of images, byte by byte."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from experiments.data.batch import Batch
from experiments.modules.classification import Classification
from experiments.modules.densities import densities
from graphattn import BipartiteGraph
from graphattn.graphs import PairMask
from graphattn.models import CausalLanguageModel


class DensityEstimation(Classification):
    r"""The cross-entropy of every symbol of a sequence, the first one included, in nats, and in
    bits for each of them ("bits/dim").

    .. math:: -\frac{1}{n \ln 2} \sum_{i=1}^n \ln p(t_i \mid t_1, ..., t_{i-1})

    The last entry of the model's vocabulary stands for the beginning: it is what the model sees
    where the first symbol is to come, and token i where symbol i + 1 is. So a position's embedding
    is that of the place that is predicted, as in Child et al. (2019).

    Args:
        model (CausalLanguageModel): What is trained; its vocabulary has one more entry than there
            are symbols.
        **kwargs: Those of :class:`experiments.modules.Classification`.

    Raises:
        TypeError, ValueError: As there, or the model is another one.
    """

    def __init__(self, model: nn.Module, **kwargs):
        super().__init__(model, **kwargs)
        if not isinstance(model, CausalLanguageModel):
            raise TypeError(f"'model' must be a CausalLanguageModel (got {type(model).__name__})")

    def evaluate(self, batch: Batch, stage: str) -> tuple[Tensor, list[BipartiteGraph | PairMask]]:
        before = behind_start(batch.tokens, batch.ptr, start_of(self.model))
        return super().evaluate(batch._replace(tokens=before, label=batch.tokens), stage)

    def log_pass(self, stage: str, batch: Batch, loss: Tensor, logits: Tensor,
                 graphs: list[BipartiteGraph | PairMask]) -> None:
        if stage == 'train':
            super().log_pass(stage, batch, loss, logits, graphs)
            return
        num_sequences = batch.ptr.numel() - 1
        self.log_means({f'{stage}/loss': loss, f'{stage}/bits_per_dim': loss / math.log(2)},
                       batch.label.numel())
        self.log_means({f'{stage}/density/{place}': density
                        for place, density in densities(graphs, num_sequences).items()},
                       num_sequences)


def start_of(model: CausalLanguageModel) -> int:
    """Return the entry of the vocabulary that marks the beginning."""
    return model.encoder.token_embedding.num_embeddings - 1


def behind_start(tokens: Tensor, ptr: Tensor, start: int) -> Tensor:
    """Return the token before each one in its sequence, ``start`` before the first."""
    is_first = tokens.new_zeros(len(tokens) + 1, dtype=torch.bool).index_fill(0, ptr[:-1], True)
    return tokens.roll(1).masked_fill(is_first[:-1], start)
