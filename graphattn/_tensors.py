"""What modules ask of tensors: can they be looked at, do they last, how narrow can they be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

_LOOKED_AT = WeakIdKeyDictionary()  # tensors on a GPU: their version then, and their numbers


def is_traced(*tensors: Tensor) -> bool:
    """Whether the numbers of ``tensors`` cannot be looked at: in code that torch is compiling, and
    in tensors without numbers or, inside of ``torch.vmap``, with many. What is checked by looking
    at numbers is not checked there."""
    return torch.compiler.is_compiling() or any(
        isinstance(tensor, FakeTensor) or tensor.is_meta or _unwrap(tensor) is None
        for tensor in tensors)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Outside of inference mode and of the transforms of ``torch.func``, for what is made here
    serves those who come later."""
    with torch.inference_mode(False), temporarily_clear_interpreter_stack():
        yield


def without_autocast(device: torch.device) -> AbstractContextManager:
    """In it torch computes in the dtypes that it is given, as it always does where it has no
    autocast: on meta."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


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


def on_cpu(tensor: Tensor) -> Tensor:
    """``tensor`` where its numbers can be looked at. As all layers of a model look at the same, a
    GPU is waited for once, for as long as nobody changes it."""
    if torch.compiler.is_compiling() or tensor.device.type == 'cpu' or tensor.is_inference():
        return tensor.cpu()
    version, numbers = _LOOKED_AT.get(tensor, (None, None))
    if version != tensor._version:
        numbers = tensor.cpu()
        _LOOKED_AT[tensor] = tensor._version, numbers
    return numbers


def _unwrap(tensor: Tensor) -> Tensor | None:
    """The tensor beneath the transforms of ``torch.func``; ``None`` where it is one of many."""
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
    """Numbers below ``bound`` in as few bytes as are enough."""
    return index.to(index_dtype(bound))


def index_dtype(bound: int) -> torch.dtype:
    """uint16, int32 or int64: the smallest for numbers below ``bound``."""
    return torch.uint16 if bound <= 2**16 else torch.int32 if bound <= 2**31 else torch.int64


def row_pointer(row: Tensor, num_rows: int) -> Tensor:
    """Where each row begins among the ascending numbers of rows, int64 ``[num_rows + 1]``."""
    return torch.searchsorted(row, torch.arange(num_rows + 1, device=row.device))
