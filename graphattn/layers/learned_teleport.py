"""A teleport that every head learns, as the sigmoid of a parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from graphattn._checks import check_bool
from graphattn.functional.recursion import check_hops, check_teleport


def check_diffusion(hops: int | float, teleport: float | Sequence[float],
                    learn_teleport: bool) -> None:
    """Raise unless the hops and the teleport of a layer are valid."""
    check_bool(learn_teleport=learn_teleport)
    check_hops(hops)
    check_teleport(teleport, hops)
    if learn_teleport and (isinstance(teleport, Sequence) or not 0. < teleport < 1.):
        raise ValueError(f"'teleport' must be a number above 0 and below 1 with "
                         f"learn_teleport=True, because learning starts from this number (got "
                         f"{teleport})")


def teleport_parameter(teleport: float, heads: int, device: torch.device | None = None,
                       dtype: torch.dtype | None = None) -> nn.Parameter:
    """Return the logit of a learned teleport in each head, ``[heads]``, initially of
    ``teleport``."""
    parameter = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
    reset_teleport(parameter, teleport)
    return parameter


def reset_teleport(parameter: nn.Parameter | None, teleport: float) -> None:
    """Set ``parameter``, unless it is None, to the logit of ``teleport`` for all heads."""
    if parameter is not None:
        nn.init.constant_(parameter, math.log(teleport) - math.log1p(-teleport))
