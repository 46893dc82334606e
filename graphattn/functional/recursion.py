"""The recursion of diffusion and its limit, and checks of ``hops`` and ``teleport``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from graphattn._checks import MAX_HOPS, check_bool, check_floating, check_on, check_size
from graphattn._tensors import is_traced
from graphattn.functional.choose import in_transform
from graphattn.ops import reference
from graphattn.ops.edge_math import restart


def spread_teleport(teleport: float | Sequence[float] | Tensor, hops: int | float,
                    value: Tensor) -> Tensor:
    """Check ``teleport`` and ``hops``, and return the teleports, ``[hops, num_tokens, heads]``."""
    if isinstance(teleport, Tensor):
        check_on('teleport', teleport, value.device, 'the values')
    check_hops(hops)
    check_teleport(teleport, hops)
    dtype = torch.promote_types(value.dtype, torch.float)
    if isinstance(teleport, Tensor):
        spread = teleport.to(dtype)
    elif isinstance(teleport, Sequence):  # filled on the device, because a copy would synchronise
        each = [value.new_full((1, 1, 1), t, dtype=dtype) for t in teleport]
        spread = torch.cat([value.new_empty(0, 1, 1, dtype=dtype), *each])
    else:
        spread = value.new_full((), teleport, dtype=dtype)
        hops = 0 if teleport == 1 else hops
    # one hop with math.inf, none if diffusion returns the values unchanged
    shape = (1 if hops == math.inf else hops, *value.shape[:2])
    try:
        return spread.expand(shape) if hops else spread.new_empty(shape)
    except RuntimeError:
        raise ValueError(f"'teleport' must be a number, or a Tensor that broadcasts to "
                         f"{list(shape)}, [hops, num_tokens, heads] (got shape "
                         f"{tuple(spread.shape)})") from None


def diffuse(one_hop: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Tensor,
            spread: Tensor, *, to_the_limit: bool) -> Tensor:  # [hops, ...]
    """Return the values after several hops, or the limit of infinitely many."""
    if to_the_limit and len(spread):
        return _limit(one_hop, weight, value, spread[0])
    return reference.diffuse(one_hop, weight, value, spread)


@torch.compiler.disable(reason='convergence depends on tensor values')
def _limit(one_hop: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Tensor,
           teleport: Tensor) -> Tensor:
    if in_transform():
        raise NotImplementedError("hops=math.inf supports reverse-mode gradients only; pass a "
                                  "finite number of hops, such as hops=8")
    if is_traced(weight, value, teleport):
        raise ValueError("'hops' must be finite on the device 'meta' and in traced code, because "
                         "convergence depends on values (got inf); pass a finite number, such as "
                         "hops=8")
    if not bool((teleport > 0).all()):
        raise ValueError("'teleport' must be positive with hops=math.inf (got 0); pass a number "
                         "such as teleport=0.1")
    return _FixedPoint.apply(one_hop, weight, value, teleport)


class _FixedPoint(torch.autograd.Function):
    """Values ``z = (1 - t) A z + t V`` that a hop no longer changes, without storing hops."""

    @staticmethod
    def forward(ctx, one_hop, weight, value, teleport):
        def step(z: Tensor) -> Tensor:
            return restart(one_hop(weight, z), value, teleport)

        ctx.one_hop, ctx.max_hops = one_hop, _max_hops(one_hop, weight, value, teleport)
        z = step(fixed_point(step, value, ctx.max_hops))
        ctx.save_for_backward(weight, value, teleport, z)
        return z

    @staticmethod
    # By the implicit function theorem, solves y = g + (1 - t) A^T y, where g is the gradient of z.
    # Reads ctx.saved_tensors only once, because an activation checkpoint repeats the whole forward
    # pass at each access.
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise NotImplementedError("hops=math.inf has no second derivative; pass a finite "
                                      "number of hops, such as hops=8")
        *inputs, z = (x.detach() for x in ctx.saved_tensors)
        wanted = [x.requires_grad_() for x, needed in zip(inputs, ctx.needs_input_grad[1:])
                  if needed]
        weight, value, teleport = inputs
        z.requires_grad_()
        with torch.enable_grad():
            after = restart(ctx.one_hop(weight, z), value, teleport)

        def adjoint(y: Tensor) -> Tensor:
            return grad + torch.autograd.grad(after, z, y, retain_graph=True)[0]
        # The bound on hops also holds for the adjoint, if errors are summed over tokens. Iteration
        # starts from grad / teleport, which already has the sum over tokens of the solution.
        y = fixed_point(adjoint, grad / teleport, ctx.max_hops)
        found = iter(torch.autograd.grad(after, wanted, y))
        return None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:])


def _max_hops(one_hop: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Tensor,
              teleport: Tensor) -> int:
    eps, left = torch.finfo(value.dtype).eps, torch.ones_like(value[..., :1])
    # After k hops, the influence of the start is at most max ((1 - t) |A|)^k 1, and every k further
    # hops reduce it by the same factor. If the weights of each query sum to 1, it is 1 - t for one.
    for hop in range(1, _HOPS_OF_TRIAL + 1 if value.numel() else 0):
        # NaN weights must not affect the bound of the other tokens.
        left = ((1 - teleport) * one_hop(weight.abs(), left)).nan_to_num(nan=0., posinf=math.inf)
        share = float(left.amax())
        if share < 1 - 4 * eps:
            smallest = eps / value[..., 0].numel()  # so that a sum over tokens is exact too
            return hop * (1 + int(math.log(smallest) / math.log(max(share, smallest))))
        if share == math.inf:
            break
    if value.numel() == 0:
        return 0
    raise RuntimeError("hops=math.inf did not converge, because 'teleport' is close to 0, or "
                       "dropout makes the weights of a query sum to more than 1; pass a larger "
                       "'teleport', or a finite number of hops")


_HOPS_OF_TRIAL = 1_000


def is_one_hop(hops: int | float, teleport: float | Sequence[float] | Tensor) -> bool:
    return hops == 1 and not isinstance(teleport, Tensor | Sequence) and teleport == 0


def check_hops(hops: int | float) -> None:
    if hops != math.inf or isinstance(hops, Tensor):
        check_size('hops', hops, at_most=MAX_HOPS)


def check_recompute(recompute: bool, hops: int | float) -> None:
    check_bool(recompute=recompute)
    if recompute and hops == math.inf:
        raise ValueError("'recompute' must be False with hops=math.inf, because each step of the "
                         "gradient would recompute the whole forward pass (got True)")


def check_teleport(teleport: float | Sequence[float] | Tensor, hops: int | float) -> None:
    if isinstance(teleport, Tensor):
        check_floating(teleport=teleport)
        inside = is_traced(teleport) or bool(((teleport >= 0) & (teleport <= 1)).all())
        shown = f'{float(teleport.min())} to {float(teleport.max())}' if not inside else ''
    else:
        each = teleport if isinstance(teleport, Sequence) else [teleport]
        if isinstance(teleport, str) or not all(
                isinstance(t, Real) and not isinstance(t, bool) for t in each):
            raise TypeError(f"'teleport' must be a number, a sequence with a number for each hop, "
                            f"or a Tensor (got {teleport!r})")
        if each is teleport and len(each) != hops:
            raise ValueError(f"'teleport' must be a number, or a sequence of {hops} numbers, one "
                             f"for each hop (got {len(each)} numbers)")
        inside, shown = all(0 <= t <= 1 for t in each), teleport
    if not inside:
        raise ValueError(f"'teleport' must be in [0, 1] (got {shown})")


_PATIENCE = 200  # number of plain steps before GMRES
# GMRES stores a vector for each step of a round, and at most this many numbers: 1 GiB of float64.
_STEPS_OF_A_ROUND, _NUMBERS_KEPT = 50, 2**27


def fixed_point(step: Callable[[Tensor], Tensor], z: Tensor, max_steps: int) -> Tensor:
    """Return the solution of ``z = step(z)`` for an affine ``step``, up to rounding."""
    # Equality is no criterion, because rounding errors may cycle forever. Some dozens of steps are
    # enough if weights mix tokens quickly; otherwise GMRES needs far fewer steps. The same elements
    # are non-finite as after infinitely many steps.
    z, has_converged = _repeat(step, z, min(max_steps, _PATIENCE))
    if has_converged or max_steps <= _PATIENCE:
        return z
    z, has_converged = _solve(step, z, max_steps)
    return z if has_converged else _repeat(step, z, max_steps)[0]


def _repeat(step: Callable[[Tensor], Tensor], z: Tensor, max_steps: int) -> tuple[Tensor, bool]:
    for _ in range(max_steps):
        before, z = z, step(z)
        if _is_rounding(before, z, 4):
            return z, True
    return z, False


def _solve(step: Callable[[Tensor], Tensor], z: Tensor, max_steps: int) -> tuple[Tensor, bool]:
    # non-finite values are 0 here; plain steps spread them afterwards
    not_finite, is_finite = z, z.isfinite()
    z = _only(is_finite, z)
    offset, eps = _only(is_finite, step(z * 0)), torch.finfo(z.dtype).eps

    def less_its_step(x: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(x).to(z).view_as(z)
        return (x - (_only(is_finite, step(x)) - offset)).flatten().cpu().numpy()

    after = _only(is_finite, step(z))
    residual = (after - z).flatten().cpu().numpy()
    operator = LinearOperator((residual.size, residual.size), less_its_step, dtype=residual.dtype)
    restart = min(_STEPS_OF_A_ROUND, max(5, _NUMBERS_KEPT // residual.size))
    min_gain = eps ** (restart / 2 / max_steps)
    # A round that gains less than half of the digits that as many plain steps should gain is the
    # last: the rest is rounding, or GMRES fails.
    for _ in range(0, max_steps, restart):
        if _is_rounding(z, after, 4):
            break
        change, _ = gmres(operator, residual, rtol=eps, restart=restart, maxiter=1)
        better = z + torch.from_numpy(change).to(z).view_as(z)
        after_better, size = _only(is_finite, step(better)), np.linalg.norm(residual)
        residual = (after_better - better).flatten().cpu().numpy()
        if not np.linalg.norm(residual) < min_gain * size:
            break
        z, after = better, after_better
    return _spread(step, torch.where(is_finite, z, not_finite)), _is_rounding(z, after, 64)


def _only(mask: Tensor, z: Tensor) -> Tensor:
    return torch.where(mask, z, 0.)


def _spread(step: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    while not bool(z.isfinite().all()):
        before, z = z, step(z)
        if bool((before.isfinite() == z.isfinite()).all()):
            break
    return z


def _is_rounding(before: Tensor, after: Tensor, tolerance: float) -> bool:
    change, largest = (after - before).abs(), after.abs()
    rounding = tolerance * torch.finfo(after.dtype).eps
    # If all values are finite, this is the only synchronisation of a GPU.
    total, most, bound = torch.stack([change.sum() + largest.sum(), change.amax(),
                                      rounding * largest.amax()]).tolist()
    if math.isfinite(total):
        return most <= bound
    if not bool((before.isfinite() == after.isfinite()).all()):
        return False
    change, largest = (x.nan_to_num(0., 0., 0.) for x in (change, largest))
    return bool(change.amax() <= rounding * largest.amax())
