"""The end of a training with non-finite values, before these values reach a checkpoint."""

import math
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from experiments.runs.checkpoints import what_is_kept
from graphattn.utils.building import check_finite

AT_ONCE = 50  # GPU losses are read in groups of this size, because reading synchronises
ADVICE = "train with a smaller 'lr', or with 'trainer.gradient_clip_val', in another folder"


class StayFinite(Callback):
    """Raise an error if a loss of a step, or a parameter before a checkpoint, is not finite."""

    def __init__(self):
        # the loss, the step and the learning rate of each loss that was not read yet
        self.unread: list[tuple[Tensor, int, float]] = []
        self.loss: Tensor | None = None  # the last one
        self.step, self.rate = 0, math.nan

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule,
                                 optimizer: Optimizer) -> None:
        self.rate = optimizer.param_groups[0]['lr']

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule,
                           outputs: dict[str, Any] | Tensor | None, *_) -> None:
        loss = outputs.get('loss') if isinstance(outputs, dict) else outputs
        if loss is not None:
            self.loss, self.step = loss.detach(), trainer.global_step
            self.unread.append((self.loss, self.step, self.rate))
            if loss.device.type == 'cpu' or len(self.unread) == AT_ONCE:
                self._check_losses(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check_losses(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule,
                           checkpoint: dict[str, Any]) -> None:
        self._check_losses(trainer)
        check_finite(checkpoint['state_dict'], f'{self.where}; {_advice(trainer)}')

    @property
    def where(self) -> str:
        """Return a description of the last training step, for error messages."""
        loss = 'unknown' if self.loss is None else f'{float(self.loss):.4g}'
        return (f'after step {self.step}, where the loss was {loss} at the learning rate '
                f'{self.rate:.3g}')

    def _check_losses(self, trainer: L.Trainer) -> None:
        unread, self.unread = self.unread, []
        for loss, step, rate in unread:
            if not math.isfinite(value := float(loss)):
                raise ValueError(f'the loss is {value} in step {step}, at the learning rate '
                                 f'{rate:.3g}; {_advice(trainer)}')


def _advice(trainer: L.Trainer) -> str:
    return f"{what_is_kept(Path(trainer.default_root_dir) / 'checkpoints')}; {ADVICE}"
