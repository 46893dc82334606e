"""The kernels of Triton without a GPU: its interpreter computes them in numpy, on CPU tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode

from graphattn import ops
from graphattn.ops.backend import everywhere

triton = pytest.importorskip('triton', reason="backend 'triton' needs triton")

from tests.ops.triton.as_on_gpus import as_on_gpus  # noqa: E402


class _AsOnCuda(TorchDispatchMode):
    """Operators of this library, and of a peer, run as they are registered for CUDA."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        is_known = operator.namespace in ('graphattn', 'anemoi')
        if is_known and torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), 'CUDA'):
            return operator._op_dk(DispatchKey.CUDA, *args, **(kwargs or {}))
        return operator(*args, **(kwargs or {}))


@contextmanager
def interpreted(bytes_of_a_tile: int = 2**15, short_rows: float = 0.) -> Iterator[None]:
    """Inside, ``backend='triton'`` takes CPU tensors, forward and backward. The kernels of
    short rows compute graphs with fewer edges of a row than ``short_rows``, on average. They are
    slow here, because each row is a program."""
    if not triton.knobs.runtime.interpret:
        pytest.skip('TRITON_INTERPRET=1 is not set')
    backend = replace(ops.load('triton'), is_available=everywhere)
    # A program takes as long whatever it holds, and so fewer of them hold more.
    larger = patch.multiple('graphattn.ops.triton.launch', _BYTES_OF_A_TILE=bytes_of_a_tile,
                            _MAX_ROWS=16, _MAX_EDGES=64)
    short = patch.multiple('graphattn.ops.attention.triton_short_rows', FASTER_BELOW=short_rows,
                           MAX_BYTES=2**20)
    with patch.dict(ops._LOADED, triton=backend), larger, short, _AsOnCuda(), as_on_gpus():
        yield
