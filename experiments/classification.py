"""Training a classifier of sequences or tokens: one step, its metrics, and the optimiser."""

from __future__ import annotations

import math
from typing import NamedTuple

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphattn import BipartiteGraph
from graphattn.samplers import density_penalty


class Batch(NamedTuple):
    """Sequences one after the other.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        label (Tensor): One class for each sequence, or for each token.
    """

    tokens: Tensor
    ptr: Tensor
    label: Tensor


class Classification(L.LightningModule):
    r"""Cross-entropy, plus ``density_weight`` times the mean density of the sampled graphs.

    .. math:: \mathcal{L} + \lambda \mathcal{L}_s

    (SBM-Transformer, Sec. 5.2.) Logs loss, accuracy, and the density of every layer and head.

    Args:
        model (nn.Module): ``model(tokens, ptr, return_graphs=True)`` gives logits and graphs.
        lr (float): Peak learning rate of AdamW.
        weight_decay (float): Decoupled weight decay.
        warmup (float): Share of the steps in which the rate rises; then it falls as a cosine.
        density_weight (float): :math:`\lambda`; needs heads that sample their graphs.
    """

    def __init__(self, model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.,
                 warmup: float = 0.1, density_weight: float = 0.):
        super().__init__()
        self.model = model
        self.lr, self.weight_decay, self.warmup = lr, weight_decay, warmup
        self.density_weight = density_weight

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, graphs = self._evaluate(batch, 'train')
        if self.density_weight > 0.:
            penalty = torch.stack([density_penalty(graph) for graph in graphs]).mean()
            loss = loss + self.density_weight * penalty
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, 'val')

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, 'test')

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr,
                                      weight_decay=self.weight_decay)
        total = max(1, int(self.trainer.estimated_stepping_batches))
        rise = max(1, round(self.warmup * total))

        def share_of_peak(step: int) -> float:
            if step < rise:
                return (step + 1) / rise
            return (1 + math.cos(math.pi * (step - rise) / max(1, total - rise))) / 2

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_peak)
        return {'optimizer': optimizer,
                'lr_scheduler': {'scheduler': schedule, 'interval': 'step'}}

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        """Refuses the checkpoint of another model before anything is changed."""
        mine = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        saved = {name: tuple(value.shape) for name, value in checkpoint['state_dict'].items()}
        if mine != saved:
            name = min(name for name in mine.keys() | saved.keys()
                       if mine.get(name) != saved.get(name))
            raise ValueError(f"'ckpt_path' holds another model: {name!r} is {saved.get(name)} "
                             f"there and {mine.get(name)} here; use the config.yaml beside it")

    def _evaluate(self, batch: Batch, stage: str) -> tuple[Tensor, list[BipartiteGraph]]:
        logits, graphs = self.model(batch.tokens, batch.ptr, return_graphs=True)
        loss = F.cross_entropy(logits, batch.label)
        accuracy = (logits.argmax(dim=-1) == batch.label).float().mean()
        density = {f'{stage}/density/layer{layer}/{head}': value
                   for layer, graph in enumerate(graphs)
                   for head, value in density_of_heads(graph, batch.ptr.numel() - 1).items()}
        options = dict(on_step=False, on_epoch=True, sync_dist=True)
        self.log_dict({f'{stage}/loss': loss, f'{stage}/accuracy': accuracy}, prog_bar=True,
                      batch_size=batch.label.numel(), **options)
        self.log_dict(density, batch_size=batch.ptr.numel() - 1, **options)
        return loss, graphs


def density_of_heads(graph: BipartiteGraph, num_sequences: int) -> dict[str, Tensor]:
    """The mean density of each head, or the one value of a graph that all heads share."""
    per_head = graph.density(per_block=True).view(-1, num_sequences).mean(dim=1).float()
    names = ['all_heads'] if len(per_head) == 1 else [f'head{h}' for h in range(len(per_head))]
    return dict(zip(names, per_head))
