"""Random values of masks, drawn by the Gumbel-sigmoid."""

from __future__ import annotations

import torch
from torch import Tensor


def add_noise(logit: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return ``logit`` plus logistic noise, which is the difference of two Gumbel noises."""
    # half precision has too few values to represent the distribution
    dtype = torch.promote_types(logit.dtype, torch.float)
    uniform = torch.rand(logit.shape, generator=generator, dtype=dtype, device=logit.device)
    return logit + uniform.logit()


def draw_values(logit: Tensor, temperature: float, generator: torch.Generator | None, *,
                hard: bool = True) -> Tensor:
    """Draw the value of a mask for each logit by the Gumbel-sigmoid, 0 or 1 if ``hard``."""
    noisy_logit = add_noise(logit, generator)
    soft = (noisy_logit / temperature).sigmoid().to(logit.dtype)
    # hard values pass their gradient straight through to the soft ones
    return (noisy_logit > 0).to(soft.dtype) + (soft - soft.detach()) if hard else soft
