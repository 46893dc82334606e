"""What every training shares: the optimiser, its schedule, and checkpoints that fit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import lightning as L
import torch
from torch import Tensor


class Training(L.LightningModule):
    r"""AdamW whose rate rises linearly to ``lr`` and falls to zero.

    Args:
        lr (float): Peak learning rate.
        weight_decay (float): Decoupled weight decay.
        warmup (float): Share of the steps in which the rate rises.
        decay (str): How it falls: as a ``'cosine'``, or ``'linear'`` as BERT's.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(self, lr: float = 1e-3, weight_decay: float = 0., warmup: float = 0.1,
                 decay: Literal['cosine', 'linear'] = 'cosine'):
        super().__init__()
        if lr <= 0.:
            raise ValueError(f"'lr' must be positive (got {lr})")
        if weight_decay < 0.:
            raise ValueError(f"'weight_decay' must not be negative (got {weight_decay})")
        if not 0. <= warmup <= 1.:
            raise ValueError(f"'warmup' must be in [0, 1], a share of the steps (got {warmup})")
        self.lr, self.weight_decay, self.warmup, self.decay = lr, weight_decay, warmup, decay

    def parameter_groups(self) -> Iterable[Tensor] | list[dict]:
        """What AdamW optimises; a group may set its own ``lr`` and ``weight_decay``."""
        return self.parameters()

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameter_groups(), lr=self.lr,
                                      weight_decay=self.weight_decay)
        total = max(1, int(self.trainer.estimated_stepping_batches))
        rise = max(1, round(self.warmup * total))

        def share_of_peak(step: int) -> float:
            if step < rise:
                return (step + 1) / rise
            left = 1 - (step - rise) / max(1, total - rise)
            return left if self.decay == 'linear' else (1 - math.cos(math.pi * left)) / 2

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
