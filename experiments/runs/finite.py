"""A training whose numbers are no numbers any more ends, and leaves no such checkpoint."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

ADVICE = ("the checkpoints before it are kept; train with a smaller 'lr', or with "
          "'trainer.gradient_clip_val', in another folder")


class StayFinite(Callback):
    """Raise a ValueError at a loss, or before a checkpoint of parameters, that is not finite.

    A loss is read one step later, when a GPU has computed it anyway.
    """

    def __init__(self):
        self.loss: Tensor | None = None
        self.step, self.rate = 0, math.nan  # of that loss

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule,
                                 optimizer: Optimizer) -> None:
        self.rate = optimizer.param_groups[0]['lr']

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule,
                           outputs: dict[str, Any] | Tensor | None, *_) -> None:
        self._check_loss()
        loss = outputs.get('loss') if isinstance(outputs, dict) else outputs
        if loss is not None:
            self.loss, self.step = loss.detach(), trainer.global_step

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check_loss()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule,
                           checkpoint: dict[str, Any]) -> None:
        self._check_loss()
        self.check_parameters(checkpoint['state_dict'])

    @property
    def where(self) -> str:
        """Say how far the training has come."""
        loss = 'unknown' if self.loss is None else f'{float(self.loss):.4g}'
        return (f'after step {self.step}, where the loss was {loss} at the learning rate '
                f'{self.rate:.3g}')

    def check_parameters(self, parameters: dict[str, Tensor]) -> None:
        """Check that all are finite.

        Raises:
            ValueError: One is not.
        """
        self._check_loss()
        for name, value in parameters.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise ValueError(f'{name!r} is not finite {self.where}; {ADVICE}')

    def _check_loss(self) -> None:
        if self.loss is not None and not math.isfinite(value := float(self.loss)):
            raise ValueError(f'the loss is {value} in step {self.step}, at the learning rate '
                             f'{self.rate:.3g}; {ADVICE}')
