"""A GPU that is not there: its tensors have numbers, and are on another device all the same.

Each holds a CPU tensor. Operations run on these, but not on tensors of both devices together; the
operators of this library run as they are registered for CUDA, their kernels interpreted. Whatever
makes the process wait for a GPU is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from triton.runtime.interpreter import InterpretedFunction

CUDA = torch.device('cuda', 0)
_LOOKS = (Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__,
          Tensor.__index__)
_WAITING = {'aten::_local_scalar_dense', 'aten::masked_select', 'aten::equal',
            'aten::_unique2', 'aten::repeat_interleave.Tensor'}


class SimulatedTensor(Tensor):
    """On the device ``cuda``, with the numbers of ``on_cpu``."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor) -> SimulatedTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, on_cpu.size(), strides=on_cpu.stride(), storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype, device=CUDA)
        tensor.on_cpu = on_cpu
        return tensor

    def __repr__(self) -> str:
        return f'SimulatedTensor({self.on_cpu})'

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return _run(operator, args, kwargs or {})


class _OfEither(type(torch.Generator)):
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, _CpuGenerator)


_CpuGenerator = torch.Generator


class SimulatedGenerator(torch.Generator, metaclass=_OfEither):
    """On either device, with the numbers of a CPU's."""

    device = None  # which the instance has

    def __new__(cls, device: torch.device | str = 'cpu') -> SimulatedGenerator:
        generator = super().__new__(cls)
        generator.device = torch.device(device)
        return generator

    def __init__(self, device: torch.device | str = 'cpu'):
        super().__init__()


@contextmanager
def simulated_gpu() -> Iterator[Counter]:
    """Inside, tensors can be made on and moved to ``'cuda'``; what waited for it is counted."""
    waits = Counter()
    with (patch.object(InterpretedFunction, 'run', _interpret), _modes(waits),
          patch('torch.cuda.device_of', lambda tensor: nullcontext()),
          patch('torch.Generator', SimulatedGenerator)):
        yield waits


@contextmanager
def _modes(waits: Counter) -> Iterator[None]:
    with _Factories(waits), _Operations(waits):
        yield


_interpret_on_cpu = InterpretedFunction.run


def _interpret(kernel: InterpretedFunction, *args, **kwargs) -> None:
    args, kwargs = tree_map(_to_cpu, (args, kwargs))
    _interpret_on_cpu(kernel, *args, **kwargs)


def _to_cpu(x: object) -> object:
    return x.on_cpu if isinstance(x, SimulatedTensor) else x


class _Factories(TorchFunctionMode):
    """What torch would do before it comes to an operation, for which it wants a real GPU."""

    def __init__(self, waits: Counter):
        super().__init__()
        self.waits = waits

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is Tensor.__getitem__:
            return _index(*args)
        if function in _LOOKS and isinstance(args[0], SimulatedTensor):
            self.waits[function.__name__.strip('_')] += 1
            return function(args[0].on_cpu)
        if function is Tensor.nonzero and isinstance(args[0], SimulatedTensor):
            self.waits['nonzero'] += 1
            return SimulatedTensor(args[0].on_cpu.nonzero())
        if function is Tensor.__setitem__ and isinstance(args[0], SimulatedTensor):
            return _set(*args)
        if function is Tensor.__invert__:
            return args[0].bitwise_not()
        if function is Tensor.contiguous and isinstance(args[0], SimulatedTensor):
            return args[0] if args[0].is_contiguous() else args[0].clone(
                memory_format=torch.contiguous_format)
        if function is Tensor.copy_ and isinstance(args[0], SimulatedTensor):
            args[0].on_cpu.copy_(getattr(args[1], 'on_cpu', args[1]))
            return args[0]
        if function is Tensor.new_tensor and isinstance(args[0], SimulatedTensor):
            return SimulatedTensor(args[0].on_cpu.new_tensor(*args[1:], **kwargs))
        if function in (Tensor.to, Tensor.cuda, Tensor.cpu):
            device = _target(function, args, kwargs)
            if device is not None:
                dtypes = [x for x in (*args[1:], kwargs.get('dtype')) if
                          isinstance(x, torch.dtype)]
                return self._move(args[0], device, dtypes)
        device = kwargs.get('device')
        if device is None and function in _device_constructors():
            device = _default_device()
        if device is not None and torch.device(device).type == 'cuda':
            _check_is_there(kwargs.get('generator'))
            made = function(*args, **{**kwargs, 'device': 'cpu'})
            return SimulatedTensor(made.on_cpu if isinstance(made, SimulatedTensor) else made)
        return function(*args, **kwargs)

    def _move(self, tensor: Tensor, device: torch.device, dtype: list[torch.dtype]) -> Tensor:
        is_there = isinstance(tensor, SimulatedTensor)
        if is_there and device.type == 'cpu':
            self.waits['cpu'] += 1
            tensor = tensor.on_cpu
        elif not is_there and device.type == 'cuda':
            tensor = SimulatedTensor(tensor.detach()).requires_grad_(tensor.requires_grad)
        return tensor.to(*dtype) if dtype else tensor


class _Operations(TorchDispatchMode):
    def __init__(self, waits: Counter):
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator.name()
        has_own = any(isinstance(x, SimulatedTensor) for x in tree_leaves(args))
        by_mask = name == 'aten::index.Tensor' and any(
            index is not None and index.dtype == torch.bool for index in args[1])
        if has_own and (name in _WAITING and 'output_size' not in (kwargs or {}) or by_mask):
            self.waits[name.removeprefix('aten::')] += 1
        if has_own and operator.namespace == 'graphattn' and (
                torch._C._dispatch_has_kernel_for_dispatch_key(name, 'CUDA')):
            with _modes(self.waits):
                kernel = torch.library.get_kernel(operator, 'CUDA')
                return kernel.call_boxed(DispatchKeySet(DispatchKey.CUDA), *args)
        return _run(operator, args, kwargs or {})


def _run(operator, args, kwargs):
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    own = [x for x in tensors if isinstance(x, SimulatedTensor)]
    others = [x for x in tensors if not isinstance(x, SimulatedTensor) and x.dim() > 0]
    if own and others and not operator.name().startswith('aten::copy_'):
        raise RuntimeError(f'{operator.name()} mixes devices: {[x.shape for x in others]} on cpu')
    args, kwargs = tree_map(_to_cpu, (args, kwargs))
    kwargs = {**kwargs, 'device': torch.device('cpu')} if 'device' in kwargs else kwargs
    result = operator(*args, **kwargs)
    if not own:
        return result
    known = {id(x.on_cpu): x for x in own}  # in place, or given back
    return tree_map(lambda x: x if not isinstance(x, Tensor) else
                    known[id(x)] if id(x) in known else SimulatedTensor(x), result)


def _default_device() -> torch.device | None:
    contexts = [mode for mode in _get_current_function_mode_stack()
                if isinstance(mode, DeviceContext)]
    return contexts[-1].device if contexts else None


def _check_is_there(generator: torch.Generator | None) -> None:
    if generator is not None and generator.device.type != 'cuda':
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def _target(function, args: tuple, kwargs: dict) -> torch.device | None:
    if function is not Tensor.to:
        return CUDA if function is Tensor.cuda else torch.device('cpu')
    for given in (kwargs.get('device'), *args[1:2]):
        if isinstance(given, str | torch.device):
            return torch.device(given)
        if isinstance(given, Tensor):
            return given.device
    return None


def _index(tensor: Tensor, index) -> Tensor:
    """``tensor[index]`` by operations of their own."""
    if not isinstance(tensor, SimulatedTensor):
        return torch.Tensor.__getitem__(tensor, index)
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor)]:
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        named = sum(part is not None for part in parts) - 1
        parts[at:at + 1] = [slice(None)] * (tensor.dim() - named)
    dim, gathered = 0, {}
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, int):
            tensor = torch.select(tensor, dim, part)
            continue
        elif isinstance(part, slice):
            if part != slice(None):
                tensor = torch.ops.aten.slice(tensor, dim, part.start, part.stop, part.step or 1)
        else:
            part = torch.tensor(part, device=CUDA) if isinstance(part, list) else part
            gathered[dim] = part
        dim += 1
    if gathered:
        tensor = torch.ops.aten.index(tensor, [gathered.get(d) for d in range(max(gathered) + 1)])
    return tensor


def _set(tensor: SimulatedTensor, index, value) -> None:
    """``tensor[index] = value``"""
    parts = index if isinstance(index, tuple) else (index,)
    if all(isinstance(part, SimulatedTensor) for part in parts):
        tensor.on_cpu[tuple(map(_to_cpu, parts))] = _to_cpu(value)
    else:
        _index(tensor, index).on_cpu.copy_(_to_cpu(value))
