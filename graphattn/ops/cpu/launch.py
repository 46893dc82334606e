"""Loops that run in several threads at once. Compiled code starts the threads, in about 1 us: a
thread started by Python waits for the interpreter's lock, 0.05 to 0.5 ms beside torch's threads."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from graphattn.ops.cpu.jit import jit

_INT, _VOID, _POINTER = ir.IntType(64), ir.VoidType(), cgutils.voidptr_t
_REGION = ir.FunctionType(_VOID, [_POINTER])
_START = ir.FunctionType(_VOID, [_REGION.as_pointer(), _POINTER, ir.IntType(32), ir.IntType(32)])


def in_threads(kernel: Callable) -> Callable:
    """Return a compiled ``launch(start, num_threads, *arguments)`` that runs the kernel in
    threads."""
    name = f'{kernel.__name__}_in_threads'
    place = dict(co_filename=kernel.__code__.co_filename, co_name=name, co_qualname=name,
                 co_firstlineno=kernel.__code__.co_firstlineno)  # numba's cache depends on it
    # ``start`` is from graphattn._threads.start_of_threads. A thread without memory ends in
    # MemoryError.
    launch = FunctionType(_launch.__code__.replace(**place),
                          {**globals(), 'kernel': jit(kernel)}, name)
    launch.__module__ = kernel.__module__
    return jit(launch)


def _launch(start, num_threads, *arguments):
    if _run_in_threads(kernel, start, num_threads, arguments) > 0:  # noqa: F821 (of each launch)
        raise MemoryError('a thread ran out of memory')


@intrinsic
def _run_in_threads(typingctx, kernel, start, num_threads, arguments):
    of_kernel = kernel.get_call_type(typingctx, arguments.types, {})
    compiled = kernel.dispatcher.overloads[of_kernel.args]

    def region_of(context, module, shared_type):
        # Each thread runs this function of a pointer to the arguments and the count of failures.
        name = module.get_unique_name(f'region.{compiled.fndesc.mangled_name}')
        region = ir.Function(module, _REGION, name)
        region.linkage = 'internal'
        builder = ir.IRBuilder(region.append_basic_block())
        shared = builder.bitcast(region.args[0], shared_type.as_pointer())
        values = cgutils.unpack_tuple(
            builder, builder.load(cgutils.gep_inbounds(builder, shared, 0, 0)))
        callee = context.declare_function(module, compiled.fndesc)
        status, _ = context.call_conv.call_function(builder, callee, of_kernel.return_type,
                                                    of_kernel.args, values)
        builder.atomic_rmw('add', cgutils.gep_inbounds(builder, shared, 0, 1),
                           builder.zext(status.is_error, _INT), 'monotonic')
        builder.ret_void()
        return region

    def codegen(context, builder, signature, args):
        _, address, number, values = args
        values = without_owners(context, builder, arguments, values)
        context.active_code_library.add_linking_library(compiled.library)
        shared_type = ir.LiteralStructType([values.type, _INT])
        region = region_of(context, builder.module, shared_type)
        shared = cgutils.alloca_once(builder, shared_type)
        builder.store(values, cgutils.gep_inbounds(builder, shared, 0, 0))
        builder.store(_INT(0), cgutils.gep_inbounds(builder, shared, 0, 1))
        data = builder.bitcast(shared, _POINTER)
        with builder.if_else(builder.icmp_signed('>', number, _INT(1))) as (several, one):
            with several:
                threads = builder.trunc(number, ir.IntType(32))
                builder.call(builder.inttoptr(address, _START.as_pointer()),
                             [region, data, threads, ir.IntType(32)(0)])
            with one:
                builder.call(region, [data])
        return builder.load(cgutils.gep_inbounds(builder, shared, 0, 1))
    # the number of calls that failed
    return types.int64(kernel, types.int64, types.int64, arguments), codegen


def without_owners(context, builder, kind, value):
    """Return an array, or a tuple of arrays, without reference counting, as an LLVM value."""
    # Threads that count references to one array would wait for one another. The caller holds one.
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = ir.Constant(array.meminfo.type, None)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        parts = cgutils.unpack_tuple(builder, value)
        return context.make_tuple(builder, kind, [
            without_owners(context, builder, each, part) for each, part in zip(kind.types, parts)])
    return value
