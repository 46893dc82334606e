"""Fixed points of affine contractions, by iteration or, if iteration is slow, by GMRES."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

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
