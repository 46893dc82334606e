"""Training of a model that estimates the density of images, byte by byte."""

import math

import torch
from torch import Tensor

from experiments.data.batch import TokenBatch
from experiments.modules.classification import Classification
from experiments.modules.densities import Graphs
from graphattn.models import CausalLanguageModel


class DensityEstimation(Classification):
    r"""Training of a model to predict every symbol of a sequence from the symbols before it, by
    cross-entropy.

    The loss is logged in nats, and in bits per symbol ("bits/dim"):

    .. math:: -\frac{1}{n \ln 2} \sum_{i=1}^n \ln p(t_i \mid t_1, ..., t_{i-1})

    The last entry of the model's vocabulary is the start token. The model reads the start token to
    predict the first symbol, and symbol i to predict symbol i + 1. Position embeddings are
    therefore those of the predicted positions, as in Child et al. (2019).

    Args:
        model (CausalLanguageModel): The model to train. Its vocabulary must have one entry more
            than there are symbols.
        **kwargs: Arguments of :class:`experiments.modules.Classification`.
    """

    model_kind = CausalLanguageModel

    def targets(self, batch: TokenBatch, stage: str) -> None:
        return None  # bits per symbol are no accuracy

    def evaluate(self, batch: TokenBatch, stage: str) -> tuple[Tensor, Graphs]:
        start = self.model.encoder.token_embedding.num_embeddings - 1
        before = behind_start(batch.tokens, batch.ptr, start)
        return super().evaluate(batch._replace(tokens=before, label=batch.tokens), stage)

    def log_pass(self, stage: str, batch: TokenBatch, loss: Tensor, logits: Tensor,
                 graphs: Graphs) -> None:
        if stage == 'train':
            super().log_pass(stage, batch, loss, logits, graphs)
            return
        self.log_means({f'{stage}/loss': loss, f'{stage}/bits_per_dim': loss / math.log(2)},
                       batch.label.numel())
        self.log_densities(stage, graphs, batch.ptr.numel() - 1)


def behind_start(tokens: Tensor, ptr: Tensor, start: int) -> Tensor:
    """Shift the tokens of each sequence by one place, and put ``start`` in the first place."""
    is_first = tokens.new_zeros(len(tokens) + 1, dtype=torch.bool).index_fill(0, ptr[:-1], True)
    return tokens.roll(1).masked_fill(is_first[:-1], start)
