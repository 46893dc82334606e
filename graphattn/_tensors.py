"""Helpers for tensors: availability of values, host copies, contexts and narrow dtypes."""

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


class _Thread(threading.local):
    host_copies: dict[int, tuple[Tensor, Tensor]] | None = None  # of the running function


THREAD = _Thread()


def is_traced(*tensors: Tensor) -> bool:
    """Return whether values are unavailable: traced code, and meta, fake or vmapped tensors."""
    if torch.compiler.is_compiling():
        return True
    for tensor in tensors:  # a loop is faster than a generator, and this runs often in every layer
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        if isinstance(tensor, FakeTensor) or tensor.is_meta or (
                is_wrapped and _beneath(tensor) is None):
            return True
    return False


def stands_for_many(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is a batch, as in ``torch.vmap`` and ``is_grads_batched``."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor) or _beneath(tensor) is None


def is_one(x: Tensor, y: Tensor) -> bool:
    """Return whether ``x`` and ``y`` are one object, or have the same memory, shape and strides."""
    if x is y or is_traced(x, y) or (x.dtype, x.device) != (y.dtype, y.device):
        return x is y
    # as a recomputed checkpoint makes them
    return _beneath(x).is_set_to(_beneath(y))


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Disable inference mode and transforms, so that tensors can be cached for later calls."""
    with torch.inference_mode(False), temporarily_clear_interpreter_stack():
        yield


def without_autocast(device: torch.device) -> AbstractContextManager:
    has_autocast = device.type != 'meta' and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if has_autocast else nullcontext()


def is_autocast(tensor: Tensor) -> bool:
    """Return whether autocast is on and casts ``tensor`` before matrix products."""
    device_type = tensor.device.type
    return (device_type != 'meta' and torch.is_autocast_enabled(device_type)
            and tensor.dtype != torch.float64)


def unwrap(tensor: Tensor) -> Tensor:
    """Return the detached tensor inside wrappers of ``torch.func``, or raise under
    ``torch.vmap``."""
    plain = _beneath(tensor)
    if plain is None:
        raise NotImplementedError("a graph cannot be drawn from a tensor that is batched by "
                                  "torch.vmap; draw the graph before calling torch.vmap, and pass "
                                  "this graph as 'graph'")
    return plain.detach()


def cache_host_copies(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate ``function`` so that :func:`host_copy` copies each tensor only once during a call.
    This saves time in models, whose layers all read the same few tensors. These tensors must not be
    modified during the call."""
    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or THREAD.host_copies is not None:
            return function(*args, **kwargs)
        THREAD.host_copies = {}
        try:
            return function(*args, **kwargs)
        finally:
            THREAD.host_copies = None
    return run


def host_copy(tensor: Tensor) -> Tensor:
    """Return a copy of ``tensor`` on the CPU, or ``tensor`` itself if it is on the CPU. The CPU
    waits for a GPU to finish its work."""
    host_copies = None if torch.compiler.is_compiling() else THREAD.host_copies
    if host_copies is None or tensor.device.type == 'cpu':
        return tensor.cpu()
    if id(tensor) not in host_copies:
        # The entry includes the tensor, because ids are unique only while tensors live.
        host_copies[id(tensor)] = tensor, tensor.cpu()
    return host_copies[id(tensor)][1]


def _beneath(tensor: Tensor) -> Tensor | None:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            # batched by torch.vmap
            return None
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def out_of_inference(tensor: Tensor) -> Tensor:
    """Return ``tensor``, or a copy that training can use if it was made in inference mode."""
    if torch.compiler.is_compiling() or not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()


def accumulated(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in the dtype in which sums are computed: at least float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float))


def narrow(index: Tensor, bound: int) -> Tensor:
    return index.to(index_dtype(bound))


def index_dtype(bound: int) -> torch.dtype:
    """Return the smallest of uint16, int32 and int64 for integers below ``bound``."""
    return torch.uint16 if bound <= 2**16 else torch.int32 if bound <= 2**31 else torch.int64


def row_pointer(row: Tensor, num_rows: int) -> Tensor:
    """Return where the edges of each row begin, given the ascending row of each edge."""
    return torch.searchsorted(row, torch.arange(num_rows + 1, device=row.device))


def constant_of(edge_prob: Tensor, value: float) -> Tensor:
    """Return ``value`` for each edge, whose gradient is passed on unchanged to ``edge_prob``."""
    # One number with stride 0: kernels recognise it by this stride.
    return _Constant.apply(edge_prob, value)


class _Constant(torch.autograd.Function):
    @staticmethod
    def forward(edge_prob: Tensor, value: float) -> Tensor:
        return edge_prob.new_full((), value).expand(edge_prob.shape)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None

    @staticmethod
    def jvp(ctx, tangent: Tensor, _: None) -> Tensor:
        return tangent.view_as(tangent)

    @staticmethod
    def vmap(info, in_dims, edge_prob: Tensor, value: float) -> tuple[Tensor, int | None]:
        return _Constant.apply(edge_prob, value), in_dims[0]
