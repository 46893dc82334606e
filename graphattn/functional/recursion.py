"""The recursion of diffusion, the limit of all hops, and checks of ``hops`` and ``teleport``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real

import torch
from torch import Tensor

from graphattn._checks import MOST_HOPS, check_bool, check_floating, check_size
from graphattn._tensors import is_traced
from graphattn.functional.choose import in_transform
from graphattn.kernels.edge_math import restart


def spread_teleport(teleport: float | Sequence[float] | Tensor, hops: int | float,
                    value: Tensor) -> Tensor:
    """Checks teleport and hops; returns the teleport of each, ``[hops, num_tokens, heads]``: of one
    hop for infinitely many, and of none if the result is the values themselves."""
    if isinstance(teleport, Tensor) and teleport.device != value.device:
        raise ValueError(f"'teleport' must be on {value.device}, where the values are (got "
                         f"{teleport.device})")
    check_hops(hops)
    check_teleport(teleport, hops)
    dtype = torch.promote_types(value.dtype, torch.float)
    if isinstance(teleport, Tensor):
        spread = teleport.to(dtype)
    else:
        spread = torch.tensor(teleport, dtype=dtype, device=value.device)
        spread = spread[:, None, None] if spread.dim() else spread
        hops = 0 if spread.dim() == 0 and teleport == 1 else hops
    shape = (1 if hops == math.inf else hops, *value.shape[:2])
    try:
        return spread.expand(shape) if hops else spread.new_empty(shape)
    except RuntimeError:
        raise ValueError(f"'teleport' must be a number or broadcast to {list(shape)}, [hops, "
                         f"num_tokens, heads] (got shape {tuple(spread.shape)})") from None


def diffuse(one_hop: Callable[[Tensor], Tensor], value: Tensor, spread: Tensor, *,
            to_the_limit: bool) -> Tensor:
    """The recursion of :func:`attention_diffusion`, for any way to multiply by the weights.

    Args:
        one_hop (Callable): Multiplies values by the weights.
        value (Tensor): What the hops begin with, and what each is mixed with.
        spread (Tensor): The teleport of every hop, ``[hops, ...]``, each broadcasting to ``value``.
        to_the_limit (bool): Repeat the one hop until nothing changes.
    """
    if to_the_limit and len(spread):
        if not bool((spread > 0).all()):
            raise ValueError("'teleport' must be positive where hops are infinitely many (got 0)")
        if in_transform():
            raise NotImplementedError("'hops' without end have the gradient of a backward pass "
                                      "alone; take a number of hops")
        return _fixed_point(lambda z: restart(one_hop(z), value, spread[0]), value)
    z = value
    for teleport_of_hop in reversed(spread.unbind()):
        z = restart(one_hop(z), value, teleport_of_hop)
    return z


def _fixed_point(step: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """``z = step(z)``. By the implicit function theorem its gradient is a fixed point too, so that
    no iteration is kept."""
    with torch.no_grad():
        z = _iterate(step, start)
    if not torch.is_grad_enabled():
        return z
    leaf = z.detach().requires_grad_()
    after = step(leaf)
    out = step(z.detach())
    if out.requires_grad:
        def solve(grad: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                raise NotImplementedError("'hops' without end have no second derivative; take a "
                                          "number of hops")

            def adjoint(y: Tensor) -> Tensor:
                return grad + torch.autograd.grad(after, leaf, y, retain_graph=True)[0]
            return _iterate(adjoint, grad)
        out.register_hook(solve)
    return out


def _iterate(step: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    if z.numel() == 0:
        return z
    was_finite = bool(z.isfinite().all())
    for _ in range(_MOST_HOPS):
        before, z = z, step(z)
        change = (z - before).abs()
        if not bool((change > 4 * torch.finfo(z.dtype).eps * z.abs().amax()).any()):
            break
    else:
        raise RuntimeError(f"'hops' without end did not converge within {_MOST_HOPS}; raise "
                           f"'teleport', or take a number of hops")
    if was_finite and not bool(z.isfinite().all()):
        raise RuntimeError("'hops' without end did not converge: the weights of some query sum to "
                           "more than 1, as with dropout; take a number of hops")
    return z


_MOST_HOPS = 10_000


def is_one_hop(hops: int | float, teleport: float | Sequence[float] | Tensor) -> bool:
    """Whether diffusion is plain attention."""
    return hops == 1 and not isinstance(teleport, Tensor | Sequence) and teleport == 0


def check_hops(hops: int | float) -> None:
    if hops != math.inf or isinstance(hops, Tensor):
        check_size('hops', hops, at_most=MOST_HOPS)


def check_recompute(recompute: bool, hops: int | float) -> None:
    check_bool(recompute=recompute)
    if recompute and hops == math.inf:
        raise ValueError("'recompute' must be False where 'hops' are infinitely many: one hop is "
                         "kept of them, and each step of their gradient would compute all again")


def check_teleport(teleport: float | Sequence[float] | Tensor, hops: int | float) -> None:
    if isinstance(teleport, Tensor):
        check_floating('teleport', teleport)
        inside = is_traced(teleport) or bool(((teleport >= 0) & (teleport <= 1)).all())
        shown = f'{float(teleport.min())} to {float(teleport.max())}' if not inside else ''
    else:
        each = teleport if isinstance(teleport, Sequence) else [teleport]
        if isinstance(teleport, str) or not all(
                isinstance(t, Real) and not isinstance(t, bool) for t in each):
            raise TypeError(f"'teleport' must be a number, one for each hop, or a Tensor (got "
                            f"{teleport!r})")
        if each is teleport and len(each) != hops:
            raise ValueError(f"'teleport' must be one number or one for each of the {hops} hops "
                             f"(got {len(each)})")
        inside, shown = all(0 <= t <= 1 for t in each), teleport
    if not inside:
        raise ValueError(f"'teleport' must be in [0, 1] (got {shown})")
