"""Training of a classifier of sequences or tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.data.batch import NO_LABEL, TokenBatch
from experiments.modules.base import Training, check_numbers
from experiments.modules.densities import densities
from experiments.runs.pretrained import load_encoder, tokenizer_of
from graphattn import BipartiteGraph
from graphattn.extension import cache_host_copies
from graphattn.graphs import PairMask
from graphattn.samplers import density_penalty
from graphattn.sources import BlockModelSource


class Classification(Training):
    r"""Training of a classifier by cross-entropy, plus a penalty of the density of graphs.

    The penalty is ``density_weight`` times the mean density of the sampled graphs:

    .. math:: \mathcal{L} + \lambda \mathcal{L}_s

    This is the loss of SBM-Transformer, Sec. 5.2. Loss, accuracy, and the density of each head and
    layer are logged.

    Args:
        model (nn.Module): The model. ``model(tokens, ptr, return_graphs=True)`` must return logits
            and graphs.
        density_weight (float): The factor :math:`\lambda` of the density; requires heads that
            sample their graphs.
        pretrained (str, optional): A checkpoint from which the encoder is initialised, for example
            of :class:`experiments.modules.SelfPretraining`. See
            :func:`experiments.runs.pretrained.load_encoder`.
        **kwargs: Arguments of :class:`experiments.modules.Training`.

    Raises:
        TypeError, ValueError: As :class:`experiments.modules.Training`, or ``density_weight`` is
            not a number or is negative.
    """

    def __init__(self, model: nn.Module, density_weight: float = 0.,
                 pretrained: str | None = None, **kwargs):
        super().__init__(model, **kwargs)
        check_numbers(density_weight=density_weight)
        if not 0. <= density_weight < math.inf:
            raise ValueError(f"'density_weight' must be at least 0 (got {density_weight})")
        if density_weight and not any(isinstance(module, BlockModelSource)
                                      for module in model.modules()):
            raise ValueError("'density_weight' requires a model whose source is a "
                             "BlockModelSource; omit 'density_weight' for other models")
        self.density_weight = density_weight
        if pretrained is not None:
            load_encoder(model.encoder, pretrained)
            self.pretrained_tokenizer = tokenizer_of(pretrained)

    @cache_host_copies
    def training_step(self, batch: TokenBatch, batch_idx: int) -> Tensor:
        loss, graphs = self.evaluate(batch, 'train')
        if self.density_weight > 0.:
            penalty = torch.stack([density_penalty(graph) for graph in graphs]).mean()
            loss = loss + self.density_weight * penalty
        return loss + self.mask_penalty(graphs)

    def validation_step(self, batch: TokenBatch, batch_idx: int) -> None:
        self.evaluate(batch, 'val')

    def test_step(self, batch: TokenBatch, batch_idx: int) -> None:
        self.evaluate(batch, 'test')

    def targets(self, batch: TokenBatch, stage: str) -> Tensor | None:
        return batch.label

    def predict_step(self, batch: TokenBatch, batch_idx: int = 0) -> Tensor:
        """Return the probability of each class for each example,
        ``[num_examples, num_classes]``."""
        return self.model(batch.tokens, batch.ptr).softmax(dim=-1)

    def evaluate(self, batch: TokenBatch,
                 stage: str) -> tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Compute the loss of a batch and log the metrics. Return the loss and the graph of each
        layer."""
        logits, graphs = self.model(batch.tokens, batch.ptr, return_graphs=True)
        num_labels = (batch.label != NO_LABEL).sum()
        loss = F.cross_entropy(logits, batch.label, reduction='sum') / num_labels.clamp(min=1)
        self.log_pass(stage, batch, loss, logits, graphs)
        return loss, graphs

    def log_pass(self, stage: str, batch: TokenBatch, loss: Tensor, logits: Tensor,
                 graphs: list[BipartiteGraph | PairMask]) -> None:
        """Log the loss, the accuracy and the densities of the graphs for a batch."""
        num_labels = (batch.label != NO_LABEL).sum()
        is_right = logits.argmax(dim=-1) == batch.label
        accuracy = is_right.sum().float() / num_labels.clamp(min=1)
        density = {f'{stage}/density/{place}': value
                   for place, value in densities(graphs, batch.ptr.numel() - 1).items()}
        self.log_means({f'{stage}/loss': loss, f'{stage}/accuracy': accuracy}, num_labels,
                       prog_bar=True)
        self.log_means(density, batch.ptr.numel() - 1)
