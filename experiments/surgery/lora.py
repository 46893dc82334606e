"""Adapters of low rank, by the package peft."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn


def check_lora(rank: int) -> None:
    """Raise unless there can be adapters of this rank."""
    if rank < 1:
        raise ValueError(f"'lora' must be positive (got {rank})")
    if find_spec('peft') is None:
        raise ValueError(f"'lora' needs the package peft (got {rank}): pip install peft")


def with_adapters(model: nn.Module, rank: int, seed: int = 0) -> Any:
    """Put adapters beside all linear layers of a model, which alone are trained from then on.

    Returns:
        The PEFT model around it; ``merge_and_unload`` returns the model with adapted weights.
    """
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank,
                                                target_modules='all-linear'))
