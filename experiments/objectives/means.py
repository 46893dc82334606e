"""Means over all examples of an evaluation, whatever the processes that looked at them."""

from __future__ import annotations

import math

from torch import Tensor
from torchmetrics import MeanMetric


class Means:
    """Weighted means by name, for who needs them and not only their log; a NaN makes NaN."""

    def __init__(self):
        self._means: dict[str, MeanMetric] = {}

    def add(self, name: str, value: Tensor, weight: int) -> None:
        """Takes a mean over ``weight`` examples in."""
        value = value.detach()
        mean = self._means.setdefault(name, MeanMetric(nan_strategy=math.nan).to(value.device))
        mean.update(value, weight)

    def compute(self) -> dict[str, float]:
        """Those of all processes; then it begins anew."""
        means, self._means = self._means, {}
        return {name: float(mean.compute()) for name, mean in means.items()}
