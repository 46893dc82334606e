"""Checks of the arguments of samplers, and of the availability of compiled loops."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module

import torch

from graphattn._checks import check_generator, check_kind, did_you_mean
from graphattn._compiler import OLDEST, CompilerMissing, runs_on
from graphattn.ops.sample.factor_model import FactorModel, check_finite_and_not_negative

MAX_DRAWS = 2**36


def check_sampling(model: FactorModel, generator: torch.Generator | None, method: str,
                   methods: tuple[str, ...]) -> None:
    check_kind('model', model, FactorModel)
    if method not in methods:
        raise ValueError(f"'method' must be one of {methods} (got {method!r}"
                         f"{did_you_mean(method, methods)})")
    check_generator(generator)
    if generator is not None and generator.device.type != model.device.type:
        raise ValueError(f"'generator' must be on {model.device}, the device of the model (got "
                         f"{generator.device}); pass torch.Generator('{model.device}')")


def takes_compiled(model: FactorModel, method: str) -> bool:
    """Return whether ``method`` runs in compiled loops, or raise an error if it cannot."""
    if method == 'torch':
        return False
    # numba on CPUs, Triton on NVIDIA's GPUs; 'auto' falls back
    is_auto, device = method == 'auto', model.device
    if device.type != 'cpu' and not runs_on(device):
        if is_auto:
            return False
        raise ValueError(f"'method' must be 'torch' or 'auto' for a model on {device} (got "
                         f"{method!r}); other methods need a CPU, or an NVIDIA GPU of compute "
                         f"capability {'.'.join(map(str, OLDEST))} or more")
    error = _why_nothing_compiles(device.type)
    if error is None:
        return True
    if is_auto:
        _warn(f'samplers fall back to slower methods: {error}')
        return False
    raise CompilerMissing(f"'method' must be 'torch' or 'auto' without a compiler (got "
                          f"{method!r}): {error}") from error


def check_rate(expected_draws: float, model: FactorModel) -> None:
    """Raise a ValueError unless the expected draws fit in memory."""
    if not expected_draws < MAX_DRAWS:
        check_finite_and_not_negative(model.factors())
        raise ValueError(f"'model' must have fewer expected draws, because these do not fit in "
                         f"memory (got {expected_draws:.3g}); multiply 'mixing' by a smaller "
                         f"factor")


def bound_is_too_high(bound: float, query: int) -> ValueError:
    return ValueError(f"'method' must not be 'thin' for this model, because 'thin' needs a bound "
                      f"below 1 on the edge probabilities of each query (got the bound {bound:.6g} "
                      f"for query {query}); pass method='compare'")


@cache
def _why_nothing_compiles(device_type: str) -> CompilerMissing | None:
    try:
        import_module('graphattn._jit' if device_type == 'cpu' else 'graphattn.ops.sample.triton')
    except CompilerMissing as error:
        return error
    return None


@cache
def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)
