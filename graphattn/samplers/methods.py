"""What every sampler is given, and whether compiled loops can serve it here."""

from __future__ import annotations

import warnings
from difflib import get_close_matches
from functools import cache

import torch

from graphattn._checks import check_generator, check_kind
from graphattn._compiler import CompilerMissing
from graphattn._triton import OLDEST, runs_on
from graphattn.samplers.factor_model import FactorModel


def check_sampling(model: FactorModel, generator: torch.Generator | None, method: str,
                   methods: tuple[str, ...]) -> None:
    """Checks the arguments of a sampler that has ``methods``."""
    check_kind('model', model, FactorModel)
    if method not in methods:
        close = get_close_matches(str(method), methods)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ''
        raise ValueError(f"'method' must be one of {methods} (got {method!r}{hint})")
    check_generator(generator)
    if generator is not None and generator.device.type != model.device.type:
        raise ValueError(f"'generator' must be on {model.device}, where the model is (got "
                         f"{generator.device})")


def takes_compiled(model: FactorModel, method: str) -> bool:
    """Whether ``method`` is one of compiled loops; for ``'auto'``, whether there are any here.

    Raises:
        ValueError: The method is compiled and the model is not on a CPU.
        CompilerMissing: The method is compiled and numba cannot be imported.
    """
    if method == 'torch':
        return False
    is_auto, is_on_cpu = method == 'auto', model.device.type == 'cpu'
    if is_auto and not is_on_cpu:
        return False
    if not is_on_cpu:
        raise ValueError(f"'method' {method!r} needs a model on the CPU (got one on "
                         f"{model.device}); 'torch' serves every device")
    error = _why_nothing_compiles()
    if error is None:
        return True
    if is_auto:
        _warn(f'samplers take slower ways: {error}')
        return False
    raise CompilerMissing(f"'method' {method!r} cannot run: {error}") from error


def takes_triton(model: FactorModel, method: str) -> bool:
    """Whether ``method`` is that of Triton; for ``'auto'``, whether it serves the model.

    Raises:
        ValueError: It is asked for and the model is not on a GPU that it serves.
        ImportError: It is asked for and Triton cannot be imported.
    """
    is_auto, is_served = method == 'auto', runs_on(model.device)
    if method != 'triton' and not (is_auto and is_served):
        return False
    if not is_served:
        raise ValueError(f"'method' 'triton' needs a model on an NVIDIA GPU of compute capability "
                         f"{'.'.join(map(str, OLDEST))} or more (got one on {model.device}); "
                         f"'torch' serves every device")
    try:
        import graphattn.samplers.triton_trials  # noqa: F401
    except ImportError as error:
        if not is_auto:
            raise
        _warn(f'samplers take slower ways: {error}')
        return False
    return True


@cache
def _why_nothing_compiles() -> CompilerMissing | None:
    try:
        import graphattn._jit  # noqa: F401
    except CompilerMissing as error:
        return error
    return None


@cache
def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)
