"""Training a classifier of sequences or tokens: one step and its metrics."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.training import Training
from graphattn import BipartiteGraph
from graphattn.pair_mask import PairMask
from graphattn.samplers import density_penalty

NO_LABEL = -100  # what torch's cross-entropy leaves out


class Batch(NamedTuple):
    """Sequences one after the other.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        label (Tensor): One class for each sequence, or for each token (NO_LABEL: none).
    """

    tokens: Tensor
    ptr: Tensor
    label: Tensor


class Classification(Training):
    r"""Cross-entropy, plus ``density_weight`` times the mean density of the sampled graphs.

    .. math:: \mathcal{L} + \lambda \mathcal{L}_s

    (SBM-Transformer, Sec. 5.2.) Logs loss, accuracy, and the density of every layer and head.

    Args:
        model (nn.Module): ``model(tokens, ptr, return_graphs=True)`` gives logits and graphs.
        density_weight (float): :math:`\lambda`; needs heads that sample their graphs.
        **kwargs: Those of :class:`experiments.training.Training`.
    """

    def __init__(self, model: nn.Module, density_weight: float = 0., **kwargs):
        super().__init__(model, **kwargs)
        self.density_weight = density_weight

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, graphs = self._evaluate(batch, 'train')
        if self.density_weight > 0.:
            penalty = torch.stack([density_penalty(graph) for graph in graphs]).mean()
            loss = loss + self.density_weight * penalty
        return loss + self.mask_penalty(graphs)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, 'val')

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, 'test')

    def _evaluate(self, batch: Batch, stage: str) -> tuple[Tensor, list[BipartiteGraph | PairMask]]:
        logits, graphs = self.model(batch.tokens, batch.ptr, return_graphs=True)
        loss = F.cross_entropy(logits, batch.label)
        self.log_pass(stage, batch, loss, logits, graphs)
        return loss, graphs

    def log_pass(self, stage: str, batch: Batch, loss: Tensor, logits: Tensor,
                 graphs: list[BipartiteGraph | PairMask]) -> None:
        """Logs what came of a batch; ``stage`` is train, val or test."""
        has_label = batch.label != NO_LABEL
        accuracy = (logits.argmax(dim=-1) == batch.label)[has_label].float().mean()
        density = {f'{stage}/density/{place}': value
                   for place, value in densities(graphs, batch.ptr.numel() - 1).items()}
        options = dict(on_step=False, on_epoch=True, sync_dist=True)
        self.log_dict({f'{stage}/loss': loss, f'{stage}/accuracy': accuracy}, prog_bar=True,
                      batch_size=int(has_label.sum()), **options)
        self.log_dict(density, batch_size=batch.ptr.numel() - 1, **options)


def densities(graphs: list[BipartiteGraph | PairMask], num_sequences: int) -> dict[str, Tensor]:
    """The mean density of each head of each layer.

    Layers that have their graph in common are one place, and so are heads.

    Args:
        graphs (list): What each layer attended along.
        num_sequences (int): How many sequences there were.
    """
    is_shared = len(graphs) > 1 and all(graph is graphs[0] for graph in graphs)
    layers = {'all_layers': graphs[0]} if is_shared else {
        f'layer{layer}': graph for layer, graph in enumerate(graphs)}
    return {f'{layer}/{head}': value for layer, graph in layers.items()
            for head, value in _density_of_heads(graph, num_sequences).items()}


def _density_of_heads(graph: BipartiteGraph | PairMask, num_sequences: int) -> dict[str, Tensor]:
    if isinstance(graph, PairMask):
        per_head = graph.dense(graph.layout.size).detach().mean(dim=(1, 2))
    else:
        per_head = graph.density(per_block=True).view(-1, num_sequences).mean(dim=1).float()
    names = ['all_heads'] if len(per_head) == 1 else [f'head{h}' for h in range(len(per_head))]
    return dict(zip(names, per_head))
