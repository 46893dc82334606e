"""Low-rank adapters (LoRA), by the package peft."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn


def check_lora(rank: int) -> None:
    """Raise an error if ``rank`` is not positive, or if the package peft is missing."""
    if rank < 1:
        raise ValueError(f"'lora' must be positive (got {rank})")
    if find_spec('peft') is None:
        raise ValueError(f"'lora' needs the package peft (got {rank}): pip install peft")


def with_adapters(model: nn.Module, rank: int, seed: int = 0) -> Any:
    """Add low-rank adapters to all linear layers of a model, and train only them."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank,
                                                target_modules='all-linear'))
