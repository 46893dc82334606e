"""A training whose numbers are no numbers any more ends, and leaves no such checkpoint."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor


class StayFinite(Callback):
    """Raise a ValueError at a loss, or before a checkpoint of parameters, that is not finite.

    A loss is read one step later, when a GPU has computed it anyway.
    """

    def __init__(self):
        self.last: tuple[Tensor, int, float] | None = None  # loss, step and learning rate

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule,
                           outputs: dict[str, Any] | Tensor | None, *_) -> None:
        self._check()
        loss = outputs['loss'] if isinstance(outputs, dict) else outputs
        if loss is not None:
            self.last = loss.detach(), trainer.global_step, rate(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule,
                           checkpoint: dict[str, Any]) -> None:
        self._check()
        for name, value in checkpoint['state_dict'].items():
            if value.is_floating_point() and not value.isfinite().all():
                raise ValueError(f'{name!r} is not finite after step {trainer.global_step}, at the '
                                 f'learning rate {rate(trainer):.3g}; {ADVICE}')

    def _check(self) -> None:
        if self.last is not None:
            loss, step, lr = self.last
            self.last = None
            if not math.isfinite(value := float(loss)):
                raise ValueError(f'the loss is {value} in step {step}, at the learning rate '
                                 f'{lr:.3g}; {ADVICE}')


ADVICE = ("the checkpoints before it are kept; train with a smaller 'lr', or with "
          "'trainer.gradient_clip_val', in another folder")


def rate(trainer: L.Trainer) -> float:
    """Return the learning rate of the first parameters."""
    return trainer.optimizers[0].param_groups[0]['lr'] if trainer.optimizers else math.nan
