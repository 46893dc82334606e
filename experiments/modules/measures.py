"""Measures over all examples of an evaluation and over all processes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torchmetrics import MeanMetric

from experiments.data.batch import NO_LABEL
from experiments.modules.base import Training
from experiments.modules.densities import Graphs, densities
from experiments.runs.summary import BASELINE_ACCURACY, BASELINE_MAE, without_nan
from graphattn.utils.files import write_whole

LAST, BEST = 'last epoch', 'best epoch, chosen on these sets'


def gathered(rows: list) -> list:
    """Return the rows of all processes, sorted, so that their number does not matter."""
    if dist.is_available() and dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, rows)
        rows = [row for part in parts for row in part]
    return sorted(rows)


class Means:
    """Weighted means of metrics over an evaluation; NaN if a value is NaN."""

    def __init__(self):
        self._means: dict[str, MeanMetric] = {}

    def add(self, name: str, value: Tensor, weight: int) -> None:
        value = value.detach()
        if name not in self._means:
            mean = MeanMetric(nan_strategy=math.nan).to(value.device)
            # The dtype is set, because half-precision training changes the default dtype. Long sums
            # in half precision stop growing.
            self._means[name] = mean.set_dtype(torch.promote_types(value.dtype, torch.float32))
        self._means[name].update(value, weight)

    def add_densities(self, graphs: Graphs, num_sequences: int) -> None:
        for place, value in densities(graphs, num_sequences).items():
            self.add(f'density/{place}', value, num_sequences)

    def compute(self) -> dict[str, float]:
        """Return the means over all processes by name, and reset them."""
        means, self._means = self._means, {}
        return {name: float(mean.compute()) for name, mean in means.items()}


class DevReport(Training):
    """Base class of trainings that write ``dev.json``, metrics after the last and best epoch."""

    means: Means
    dev: list[dict[str, float]]  # a row for each epoch

    def compute(self, stage: str) -> dict[str, Tensor]:
        """Return the metrics of a stage over all processes by name, and reset them."""
        raise NotImplementedError

    def on_validation_epoch_end(self) -> None:
        values = self._log_metrics('val')
        if self.trainer.state.fn == 'fit' and not self.trainer.sanity_checking:
            self.dev.append({'epoch': self.current_epoch + 1, 'step': self.global_step, **values})

    def on_test_epoch_end(self) -> None:
        self._log_metrics('test')

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint['dev'] = self.dev

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        super().on_load_checkpoint(checkpoint)
        self.dev = checkpoint['dev']

    def write_dev(self, about: dict[str, Any],
                  score: Callable[[dict[str, float]], float]) -> dict[str, float] | None:
        """Write the report, and return the row of the best epoch, if this process has any."""
        if not self.dev or not self.trainer.is_global_zero:
            return None
        best = max(self.dev, key=score)
        report = {**about, LAST: without_nan(self.dev[-1]), BEST: without_nan(best)}
        text = json.dumps(report, indent=2, allow_nan=False) + '\n'
        write_whole(Path(self.trainer.default_root_dir) / 'dev.json',
                    lambda path: path.write_text(text))
        return best

    def _log_metrics(self, stage: str) -> dict[str, float]:
        values = self.means.compute()
        values |= {name: float(value) for name, value in self.compute(stage).items()}
        self.log_dict({f'{stage}/{name}': value for name, value in values.items()})
        return values


class Baseline(Callback):
    """Log the best result of a constant in a test: the most frequent class, or the median."""

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
            name, value = of_constant(torch.tensor(gathered(torch.cat(targets).tolist())))
            self.log(f'test/{name}', value)


def of_constant(targets: Tensor) -> tuple[str, Tensor]:
    if targets.is_floating_point():
        return BASELINE_MAE, (targets - targets.nanmedian(dim=0).values).abs().nanmean()
    counts = targets[targets != NO_LABEL].unique(return_counts=True)[1]
    return BASELINE_ACCURACY, counts.max() / counts.sum()
