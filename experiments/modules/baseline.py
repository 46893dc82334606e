"""The result of a constant prediction in a test, to which that of a model compares."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from experiments.data.batch import NO_LABEL
from experiments.modules.gathered import gathered
from experiments.runs.summary import BASELINE_ACCURACY, BASELINE_MAE


class Baseline(Callback):
    """A callback that logs the best result of a constant in a test: the share of the most frequent
    class, or the mean absolute error of the median."""

    def __init__(self):
        self.targets: list[Tensor] = []

    def on_test_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object,
                          batch: object, *_: Any) -> None:
        targets = pl_module.targets(batch, 'test')
        if targets is not None:
            self.targets.append(targets.cpu())

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        targets, self.targets = self.targets, []
        if targets:
            values = torch.tensor(gathered(torch.cat(targets).tolist()))
            name, value = of_constant(values)
            self.log(f'test/{name}', value)


def of_constant(targets: Tensor) -> tuple[str, Tensor]:
    """Return the name and the value of the result."""
    if targets.is_floating_point():
        return BASELINE_MAE, (targets - targets.nanmedian(dim=0).values).abs().nanmean()
    counts = targets[targets != NO_LABEL].unique(return_counts=True)[1]
    return BASELINE_ACCURACY, counts.max() / counts.sum()
