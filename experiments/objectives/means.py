"""Means over all examples of an evaluation, whatever the processes that looked at them."""

from __future__ import annotations

from torch import Tensor
from torchmetrics import MeanMetric


class Means:
    """Weighted means by name. Lightning's own are off where processes have unequally many
    examples."""

    def __init__(self):
        self._means: dict[str, MeanMetric] = {}

    def add(self, name: str, value: Tensor, weight: int) -> None:
        """Takes a mean over ``weight`` examples in."""
        value = value.detach()
        self._means.setdefault(name, MeanMetric().to(value.device)).update(value, weight)

    def compute(self) -> dict[str, float]:
        """Those of all processes; then it begins anew."""
        means, self._means = self._means, {}
        return {name: float(mean.compute()) for name, mean in means.items()}
