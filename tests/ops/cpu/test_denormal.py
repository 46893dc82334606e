"""Loops over tiles calculate with no number that memory contained before: a denormal one is a
hundred times as slow, and no result shows it."""

import ctypes
import math
import platform
from functools import partial

import numpy as np
import pytest
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from graphattn import edge_attention
from graphattn.ops.attention import cpu
from graphattn.patterns import parse

pytestmark = pytest.mark.skipif(platform.machine() != 'x86_64', reason='reads a register of x86')
PERTURB = -6  # an option of malloc
NEW, SEEN = 0x1f80, 2  # the register MXCSR of a new thread, and its bit for denormal operands


@intrinsic
def _exchange(typingctx, new):
    def codegen(context, builder, signature, args):
        slot = builder.alloca(ir.IntType(32))
        address = builder.bitcast(slot, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type])
        builder.call(builder.module.declare_intrinsic('llvm.x86.sse.stmxcsr', fnty=kind), [address])
        old = builder.load(slot)
        builder.store(args[0], slot)
        builder.call(builder.module.declare_intrinsic('llvm.x86.sse.ldmxcsr', fnty=kind), [address])
        return old
    return types.int32(types.int32), codegen


@njit
def _register(new):
    return _exchange(new)


def takes_denormals(work):
    _register(np.int32(NEW))
    result = work()
    return bool(_register(np.int32(NEW)) & SEEN), result


@pytest.fixture
def denormal_memory(monkeypatch):
    """Fills new memory with denormal numbers; all work is in tiles and in this thread."""
    for most in 'MOST', 'MOST_BACKWARD':
        monkeypatch.setattr(cpu, most, math.inf)
    threads, malloc = torch.get_num_threads(), ctypes.CDLL(None)
    if not hasattr(malloc, 'mallopt'):
        pytest.skip('needs the malloc of glibc')
    torch.set_num_threads(1)
    malloc.mallopt(PERTURB, 127)  # new bytes are 128, a denormal float32
    yield
    malloc.mallopt(PERTURB, 0)
    torch.set_num_threads(threads)


@pytest.mark.parametrize('width', [8, 24, 40])
@pytest.mark.parametrize('pattern', ['Causal()', 'bigbird(block=16)', 'SlidingWindow(20)',
                                     'Strided(3)'])
def test_what_memory_contained_enters_no_sum(pattern, width, denormal_memory):
    assert takes_denormals(lambda: torch.full((8,), 1e-39) * 2)[0]
    graph = parse(pattern).build(200)
    torch.manual_seed(0)  # others may have a denormal gradient
    query, key, value = (torch.randn(200, 2, width, requires_grad=True) for _ in range(3))
    grad_out = torch.randn(200, 2, width)
    for _ in range(2):  # the compiler, before the first call, calculates too
        forward, out = takes_denormals(
            lambda: edge_attention(query, key, value, graph, backend='numba'))
        backward, _ = takes_denormals(
            partial(torch.autograd.grad, out, (query, key, value), grad_out))
    assert not forward and not backward
