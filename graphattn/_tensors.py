"""Properties of tensors: are their values available, do they last, how narrow can they be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

P, R = ParamSpec('P'), TypeVar('R')
_THREAD = threading.local()  # host copies made inside of a function that copies once


def is_traced(*tensors: Tensor) -> bool:
    """Return whether values of ``tensors`` are unavailable: while torch is compiling, and for
    tensors without values or, inside of ``torch.vmap``, with many. Values are not checked there."""
    if torch.compiler.is_compiling():
        return True
    for tensor in tensors:  # no generator, because every call of every layer comes here often
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        if isinstance(tensor, FakeTensor) or tensor.is_meta or (
                is_wrapped and _unwrap(tensor) is None):
            return True
    return False


def stands_for_many(tensor: Tensor) -> bool:
    """Return whether a tensor is batched by ``torch.vmap`` or by ``is_grads_batched``."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor) or _unwrap(tensor) is None


def is_one(x: Tensor, y: Tensor) -> bool:
    """Tell whether two tensors are one. A checkpoint that runs once more hands over several
    tensors in the memory of one."""
    if x is y or is_traced(x, y) or (x.dtype, x.device) != (y.dtype, y.device):
        return x is y
    return _unwrap(x).is_set_to(_unwrap(y))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Outside of inference mode and of the transforms of ``torch.func``, for what is made here
    serves those who come later."""
    with torch.inference_mode(False), temporarily_clear_interpreter_stack():
        yield


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context in which torch computes in the dtypes that it is given."""
    has_autocast = device.type != 'meta' and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if has_autocast else nullcontext()


def is_autocast(tensor: Tensor) -> bool:
    """Return whether autocast is on and casts ``tensor`` for products of matrices."""
    device_type = tensor.device.type
    return (device_type != 'meta' and torch.is_autocast_enabled(device_type)
            and tensor.dtype != torch.float64)


def numbers_of(tensor: Tensor) -> Tensor:
    """``tensor`` as plain numbers, without the gradients that transforms of ``torch.func`` take.

    Raises:
        NotImplementedError: It stands for many tensors, inside of ``torch.vmap``.
    """
    plain = _unwrap(tensor)
    if plain is None:
        raise NotImplementedError("a graph is drawn from numbers, and inside of torch.vmap a "
                                  "tensor stands for many; draw the graph outside, and pass "
                                  "'graph'")
    return plain.detach()


def looks_once(function: Callable[P, R]) -> Callable[P, R]:
    """Until ``function`` returns, :func:`on_cpu` looks at a tensor of a GPU once: all layers of a
    model look at the same ones. No code writes to them meanwhile; between two calls it may."""
    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or getattr(_THREAD, 'looked_at', None) is not None:
            return function(*args, **kwargs)
        _THREAD.looked_at = {}
        try:
            return function(*args, **kwargs)
        finally:
            _THREAD.looked_at = None
    return run


def on_cpu(tensor: Tensor) -> Tensor:
    """``tensor`` on the host, where its values can be read. On a GPU the host waits."""
    looked_at = None if torch.compiler.is_compiling() else getattr(_THREAD, 'looked_at', None)
    if looked_at is None or tensor.device.type == 'cpu':
        return tensor.cpu()
    if id(tensor) not in looked_at:
        looked_at[id(tensor)] = tensor, tensor.cpu()  # whose id is its own as long as it is here
    return looked_at[id(tensor)][1]


def _unwrap(tensor: Tensor) -> Tensor | None:
    """Return the tensor beneath transforms of ``torch.func``, ``None`` where it is one of many."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return None
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def lasting(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy of one made in inference mode, which no training step could use."""
    if torch.compiler.is_compiling() or not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()


def narrow(index: Tensor, bound: int) -> Tensor:
    """Return numbers below ``bound`` in as few bytes as are enough."""
    return index.to(index_dtype(bound))


def index_dtype(bound: int) -> torch.dtype:
    """uint16, int32 or int64: the smallest for numbers below ``bound``."""
    return torch.uint16 if bound <= 2**16 else torch.int32 if bound <= 2**31 else torch.int64


def row_pointer(row: Tensor, num_rows: int) -> Tensor:
    """Return where each row begins among ascending rows, int64 ``[num_rows + 1]``."""
    return torch.searchsorted(row, torch.arange(num_rows + 1, device=row.device))
