"""A GPU that is not there: its tensors have numbers, and are on another device all the same.

Each holds a CPU tensor. Operations run on these, but not on tensors of both devices together; the
operators of this library run as they are registered for CUDA, their kernels interpreted. Whatever
makes the process wait for a GPU is counted, in forward and backward passes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from triton.runtime.interpreter import InterpretedFunction

from tests.ops.triton.as_on_gpus import as_on_gpus

CUDA = torch.device('cuda', 0)
# What torch's own code takes it for: it does nothing for this device that wants a real one.
_META = torch.device('meta')
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
_WAITING = {'aten::_local_scalar_dense', 'aten::nonzero', 'aten::masked_select', 'aten::equal',
            'aten::_unique2', 'aten::unique_consecutive', 'aten::unique_dim', 'aten::bincount',
            'aten::repeat_interleave.Tensor'}
_BY_MASK = {'aten::index.Tensor', 'aten::index_put', 'aten::index_put_'}
_COPIES = {'aten::_to_copy', 'aten::copy_'}


class SimulatedTensor(Tensor):
    """On the device ``cuda``, with the numbers of ``on_cpu``."""

    device, is_cuda, is_meta = CUDA, True, False
    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor) -> 'SimulatedTensor':
        with torch.inference_mode(False):  # which would refuse views of what was made outside
            tensor = Tensor._make_wrapper_subclass(
                cls, on_cpu.size(), strides=on_cpu.stride(), dtype=on_cpu.dtype, device=_META,
                storage_offset=on_cpu.storage_offset())
        tensor.on_cpu = on_cpu
        return tensor

    def __repr__(self) -> str:
        return f'SimulatedTensor({self.on_cpu})'

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if form else repr(self)

    def tolist(self) -> list:
        return self.cpu().tolist()

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

    def __new__(cls, device: torch.device | str = 'cpu') -> 'SimulatedGenerator':
        generator = super().__new__(cls)
        generator.device = torch.device(device)
        return generator

    def __init__(self, device: torch.device | str = 'cpu'):
        super().__init__()


@contextmanager
def simulated_gpu() -> Iterator[Counter]:
    """Inside, tensors can be made on and moved to ``'cuda'``; what waited for it is counted."""
    waits = Counter()
    with ExitStack() as stack:
        for name, replacement in (
                ('triton.runtime.interpreter.InterpretedFunction.run', _interpret),
                ('torch.cuda.device_of', lambda tensor: nullcontext()),
                ('torch.Generator', SimulatedGenerator),
                # Parameters that are moved are then other tensors.
                ('torch._has_compatible_shallow_copy_type', lambda *tensors: False),
                ('torch.autograd._engine_run_backward', _with_devices(_run_backward))):
            stack.enter_context(patch(name, replacement))
        stack.enter_context(_modes(waits))
        yield waits


@contextmanager
def out_of_memory_after(num_operations: int) -> Iterator[None]:
    """Inside, no operation succeeds once so many have."""
    left = num_operations

    def run_or_fail(*args):
        nonlocal left
        left -= 1
        if left < 0:
            raise torch.OutOfMemoryError('CUDA out of memory')
        return run(*args)

    run = _run
    with patch(f'{__name__}._run', run_or_fail):
        yield


@contextmanager
def counted_launches() -> Iterator[Counter]:
    """Inside, kernels are counted, and operations that do not only view or allocate."""
    launches = Counter()

    def run_counted(operator, *args):
        returns = operator._schema.returns
        is_view = any(x.alias_info is not None and not x.alias_info.is_write for x in returns)
        if not is_view and 'empty' not in operator.name():
            launches[operator.name()] += 1
        return run(operator, *args)

    def interpret_counted(kernel: InterpretedFunction, *args, **kwargs) -> None:
        launches[kernel.fn.__name__] += 1
        with patch(f'{__name__}._run', run):  # the interpreter copies its tensors
            _interpret(kernel, *args, **kwargs)

    run = _run
    with patch(f'{__name__}._run', run_counted), patch(
            'triton.runtime.interpreter.InterpretedFunction.run', interpret_counted):
        yield launches


@contextmanager
def _modes(waits: Counter) -> Iterator[None]:
    with _Devices(), _Operations(waits):
        yield


_interpret_on_cpu = InterpretedFunction.run
_run_backward = torch.autograd._engine_run_backward


def _with_devices(run: Callable) -> Callable:
    """Python's code in a backward pass, which torch runs below what :class:`_Devices` sees."""
    def run_with_devices(*args, **kwargs):
        with _Devices():
            return run(*args, **kwargs)
    return run_with_devices


def _interpret(kernel: InterpretedFunction, *args, **kwargs) -> None:
    if any(isinstance(x, Tensor) and not isinstance(x, SimulatedTensor) for x in args):
        raise RuntimeError(f'{kernel.fn.__name__} is given tensors on cpu')
    args, kwargs = tree_map(_to_cpu, (args, kwargs))
    with as_on_gpus():
        _interpret_on_cpu(kernel, *args, **kwargs)


def _to_cpu(x: object) -> object:
    return x.on_cpu if isinstance(x, SimulatedTensor) else x


class _Devices(TorchFunctionMode):
    """Says ``meta`` wherever torch is told ``cuda``, of which it would want a real one."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is Tensor.cuda:
            function, args = Tensor.to, (args[0], CUDA)
        if function is Tensor.to:
            args = tuple(_META if _is_cuda(x) else x for x in args)
        if function in (Tensor.__getitem__, Tensor.__setitem__) and args[0].is_cuda:
            args = (args[0], _with_tensors(args[1]), *args[2:])
        device = kwargs.get('device')
        if device is None and function in _device_constructors():
            device = _default_device()
        if _is_cuda(device):
            _check_is_there(kwargs.get('generator'))
            kwargs = {**kwargs, 'device': _META}
        is_there = (_is_cuda(device) if device is not None
                    else function is Tensor.new_tensor and args[0].is_cuda)
        if function in _FROM_DATA and is_there and not isinstance(args[-1], Tensor):
            return function(*args, **{**kwargs, 'device': 'cpu'}).to(_META)
        return function(*args, **kwargs)


class _Operations(TorchDispatchMode):
    def __init__(self, waits: Counter):
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._count(operator.name(), args, kwargs)
        if operator.namespace == 'graphattn' and _has_own(args):
            with _modes(self.waits):
                return _own_operator(operator, *args)
        return _run(operator, args, kwargs)

    def _count(self, name: str, args: tuple, kwargs: dict) -> None:
        has_own = _has_own((args, kwargs))
        by_mask = name in _BY_MASK and any(
            index is not None and index.dtype == torch.bool for index in args[1])
        if has_own and (by_mask or name in _WAITING and 'output_size' not in kwargs):
            self.waits[name.removeprefix('aten::')] += 1
        if name in _COPIES:
            *_, copied = (x for x in args if isinstance(x, Tensor))
            to_gpu = _is_there(kwargs, args[:1])
            is_free = to_gpu and (kwargs.get('non_blocking') or True in args[2:])
            if isinstance(copied, SimulatedTensor) != to_gpu and copied.numel() and not is_free:
                self.waits['cuda' if to_gpu else 'cpu'] += 1


def _own_operator(operator, *args):
    """An operator of this library as it is registered for CUDA, or for any device."""
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), 'CUDA'):
        raise NotImplementedError(f'{operator.name()} is not registered for CUDA')
    kernel = torch.library.get_kernel(operator, 'CUDA')
    return kernel.call_boxed(DispatchKeySet(DispatchKey.CUDA), *args)


def _run(operator, args, kwargs):
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    own = [x for x in tensors if isinstance(x, SimulatedTensor)]
    others = [x for x in tensors if not isinstance(x, SimulatedTensor) and x.dim() > 0]
    if own and others and operator.name() not in _COPIES:
        raise RuntimeError(f'{operator.name()} mixes devices: {[x.shape for x in others]} on cpu')
    is_there = _is_there(kwargs, own)
    args, kwargs = tree_map(_to_cpu, (args, kwargs))
    kwargs = {**kwargs, 'device': torch.device('cpu')} if 'device' in kwargs else kwargs
    result = operator(*args, **kwargs)
    if not is_there:
        return result
    known = {id(x.on_cpu): x for x in own}  # in place, or given back
    return tree_map(lambda x: x if not isinstance(x, Tensor) else
                    known[id(x)] if id(x) in known else SimulatedTensor(x), result)


def _has_own(tree: object) -> bool:
    return any(isinstance(x, SimulatedTensor) for x in tree_leaves(tree))


def _is_there(kwargs: dict, tensors: object) -> bool:
    """Return whether the result of an operation is there."""
    device = kwargs.get('device')
    return _has_own(tensors) if device is None else device == _META


def _is_cuda(device: object) -> bool:
    return isinstance(device, str | torch.device) and torch.device(device).type == 'cuda'


def _default_device() -> torch.device | None:
    contexts = [mode for mode in _get_current_function_mode_stack()
                if isinstance(mode, DeviceContext)]
    return contexts[-1].device if contexts else None


def _check_is_there(generator: torch.Generator | None) -> None:
    if generator is not None and generator.device.type != 'cuda':
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def _with_tensors(index: object) -> object:
    """An index with its lists of numbers on the device."""
    if isinstance(index, tuple):
        return tuple(map(_with_tensors, index))
    return torch.tensor(index).to(_META) if isinstance(index, list) else index


def to_gpu(tree: object) -> object:
    return tree_map(lambda x: x.to('cuda', non_blocking=True) if isinstance(x, Tensor) else x,
                    tree)
