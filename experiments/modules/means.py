"""Means over all examples of an evaluation and over all processes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import MeanMetric


class Means:
    """Weighted means of metrics over an evaluation. If a value is NaN, the mean of its metric is
    NaN."""

    def __init__(self):
        self._means: dict[str, MeanMetric] = {}

    def add(self, name: str, value: Tensor, weight: int) -> None:
        """Add the value of a metric that is a mean over ``weight`` examples."""
        value = value.detach()
        if name not in self._means:
            mean = MeanMetric(nan_strategy=math.nan).to(value.device)
            # The dtype is set, because half-precision training changes the default dtype. Long sums
            # in half precision stop growing.
            self._means[name] = mean.set_dtype(torch.promote_types(value.dtype, torch.float32))
        self._means[name].update(value, weight)

    def compute(self) -> dict[str, float]:
        """Return a dict of the means over all processes, and reset the means."""
        means, self._means = self._means, {}
        return {name: float(mean.compute()) for name, mean in means.items()}
