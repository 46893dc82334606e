"""SIMD vectors as numba types, with their operations as numba intrinsics.

If the compiler vectorised loops over channels itself, it would add checks that the rows that a loop
reads and writes do not overlap.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import float32, int32, types, uint16
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from graphattn._jit import jit
from graphattn.ops.cpu.jit import INLINE

LANES = 16
_WORD = ir.IntType(32)


class _Vector(types.Type):
    def __init__(self, dtype: types.Float, lanes: int = LANES):
        self.dtype, self.lanes = dtype, lanes
        super().__init__(f'Vector({dtype}, {lanes})')


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector: _Vector):
        scalar = manager[vector.dtype].get_value_type()
        super().__init__(manager, vector, ir.VectorType(scalar, vector.lanes))


class _Mask(types.Type):
    def __init__(self):
        super().__init__(f'Mask({LANES})')


@register_model(_Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager, mask: _Mask):
        super().__init__(manager, mask, ir.VectorType(ir.IntType(1), LANES))


def vector_of(array: types.Array) -> _Vector:
    return _Vector(array.dtype)


@intrinsic
def splat(typingctx, scalar):
    def codegen(context, builder, signature, args):
        vector = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
        for lane in range(LANES):
            vector = builder.insert_element(vector, args[0], ir.IntType(32)(lane))
        return vector
    return _Vector(scalar)(scalar), codegen


@intrinsic
def load(typingctx, array, position):
    """Return the vector of ``LANES`` values that begins at ``array.flat[position]``."""
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, signature.return_type)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)
    return _Vector(array.dtype)(array, position), codegen


@intrinsic
def load_four(typingctx, array, position):
    """Return four values from ``array.flat[position]`` on, of the type of ``sum_lanes_of_each``."""
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, signature.return_type)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)
    return _Vector(array.dtype, 4)(array, position), codegen


@intrinsic
def store(typingctx, array, position, vector):
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, vector)
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
    return types.void(array, position, vector), codegen


@intrinsic
def first_lanes(typingctx, n):
    def codegen(context, builder, signature, args):
        numbers = ir.Constant(ir.VectorType(ir.IntType(64), LANES), list(range(LANES)))
        bound = ir.Constant(numbers.type, ir.Undefined)
        for lane in range(LANES):
            bound = builder.insert_element(bound, args[0], ir.IntType(32)(lane))
        return builder.icmp_signed('<', numbers, bound)
    return _Mask()(types.int64), codegen


@intrinsic
def load_some(typingctx, array, position, mask):
    """Return a vector as :func:`load` does, with 0 in the lanes that are not in the mask."""
    def codegen(context, builder, signature, args):
        # the other lanes may lie outside the array
        vector = context.get_value_type(signature.return_type)
        pointer = _pointer(context, builder, signature, args, signature.return_type)
        return _call_masked(builder, 'load', vector, [
            pointer, ir.IntType(32)(array.dtype.bitwidth // 8), args[2],
            ir.Constant(vector, [0.] * LANES)], returns=vector)
    return _Vector(array.dtype)(array, position, mask), codegen


@intrinsic
def store_some(typingctx, array, position, vector, mask):
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, vector)
        _call_masked(builder, 'store', args[2].type, [
            args[2], pointer, ir.IntType(32)(array.dtype.bitwidth // 8), args[3]],
            returns=ir.VoidType())
    return types.void(array, position, vector, mask), codegen


def _call_masked(builder, name, vector, args, returns):
    scalar = {'float': 'f32', 'double': 'f64'}[str(vector.element)]
    kind = ir.FunctionType(returns, [arg.type for arg in args])
    callee = cgutils.get_or_insert_function(builder.module, kind,
                                            f'llvm.masked.{name}.v{LANES}{scalar}.p0')
    return builder.call(callee, args)


@intrinsic
def prefetch(typingctx, array, position):
    """Prefetch the cache line of ``array.flat[position]``, which may lie outside the array."""
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, types.uint8)
        flags = [ir.IntType(32)(flag) for flag in (0, 3, 1)]  # to read, all levels, data
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *(flag.type for flag in flags)])
        callee = cgutils.get_or_insert_function(builder.module, kind, 'llvm.prefetch.p0')
        builder.call(callee, [pointer, *flags])
    return types.void(array, position), codegen


def _pointer(context, builder, signature, args, vector):
    array = context.make_array(signature.args[0])(context, builder, args[0])
    scalar = builder.gep(array.data, [args[1]])
    return builder.bitcast(scalar, context.get_value_type(vector).as_pointer())


@intrinsic
def multiply_add(typingctx, x, y, z):
    def codegen(context, builder, signature, args):
        return builder.fadd(builder.fmul(*args[:2], flags=['contract']), args[2],
                            flags=['contract'])
    return x(x, x, x), codegen


@intrinsic
def multiply(typingctx, x, y):
    def codegen(context, builder, signature, args):
        return builder.fmul(*args)
    return x(x, x), codegen


@intrinsic
def add(typingctx, x, y):
    def codegen(context, builder, signature, args):
        return builder.fadd(*args)
    return x(x, x), codegen


@intrinsic
def maximum(typingctx, x, y):
    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered('>', *args), *args)
    return x(x, x), codegen


def _lanes(index: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(index)), index)


def _fold(builder, vector, combine):
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        vector = combine(*(builder.shuffle_vector(vector, vector,
                                                  _lanes(list(range(begin, begin + lanes))))
                           for begin in (0, lanes)))
    return builder.extract_element(vector, ir.IntType(32)(0))


@intrinsic
def sum_lanes(typingctx, vector):
    def codegen(context, builder, signature, args):
        return _fold(builder, args[0], builder.fadd)
    return vector.dtype(vector), codegen


@intrinsic
def max_lane(typingctx, vector):
    def codegen(context, builder, signature, args):
        return _fold(builder, args[0],
                     lambda x, y: builder.select(builder.fcmp_ordered('>', x, y), x, y))
    return vector.dtype(vector), codegen


@intrinsic
def sum_lanes_of_each(typingctx, a, b, c, d):
    """Return the sums of the lanes of four vectors, in fewer steps than by ``sum_lanes``."""
    def codegen(context, builder, signature, args):
        def fold(x, y, low, high):
            return builder.fadd(builder.shuffle_vector(x, y, _lanes(low)),
                                builder.shuffle_vector(x, y, _lanes(high)))
        first, second = list(range(8)), list(range(8, 16))
        ab, cd = (fold(x, y, first + [16 + lane for lane in first],
                       second + [16 + lane for lane in second])
                  for x, y in (args[:2], args[2:]))
        quarters = [lane for start in (0, 8, 16, 24) for lane in range(start, start + 4)]
        abcd = fold(ab, cd, quarters, [lane + 4 for lane in quarters])
        abcd = builder.fadd(abcd, builder.shuffle_vector(
            abcd, abcd, _lanes([lane ^ 2 for lane in range(16)])))
        abcd = builder.fadd(abcd, builder.shuffle_vector(
            abcd, abcd, _lanes([lane ^ 1 for lane in range(16)])))
        return builder.shuffle_vector(abcd, abcd, _lanes([0, 4, 8, 12]))
    return _Vector(a.dtype, 4)(a, b, c, d), codegen


@intrinsic
def atomic_add(typingctx, counters, position):
    """Add 1 to ``counters.flat[position]`` atomically, and return the previous value."""
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, types.int64)
        # Who reads the new value by load_acquire also sees what this thread has written before.
        return builder.atomic_rmw('add', pointer, ir.IntType(64)(1), 'acq_rel')
    return types.int64(counters, position), codegen


@intrinsic
def load_acquire(typingctx, counters, position):
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, types.int64)
        return builder.load_atomic(pointer, 'acquire', 8)
    return types.int64(counters, position), codegen


def exp(x):
    """Return the exponential of ``x``; in float32, with a relative error of 3e-7, and 0 below
    -87."""
    raise NotImplementedError  # compiled code calls the overload


@intrinsic
def _as_float(typingctx, bits):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float32))
    return types.float32(types.int32), codegen


@jit(inline=True, fastmath=frozenset({'contract'}))
def _reduced(x, exponent, ln2_high, ln2_low):
    # x - exponent * ln(2). Reordered sums would add both parts of ln(2) first; without fused
    # products and sums, the exponential would lose three bits.
    return x - exponent * ln2_high - exponent * ln2_low


@overload(exp, inline='always')
def _overload_exp(x):
    if x != types.float32:
        return lambda x: math.exp(x)
    log2_e, ln2_high, ln2_low = map(np.float32, (1.44269504, 0.693359375, -2.12194440e-4))
    c2, c3, c4, c5, c6, c7 = map(np.float32, (
        5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3,
        1.9875691500e-4))
    low, half, one = map(np.float32, (-87., 0.5, 1.))
    zero = np.float32(0)

    def exp(x):
        exponent = np.floor(x * log2_e + half)
        r = _reduced(x, exponent, ln2_high, ln2_low)
        poly = c7
        poly = poly * r + c6
        poly = poly * r + c5
        poly = poly * r + c4
        poly = poly * r + c3
        poly = poly * r + c2
        poly = poly * r * r + r + one
        power = _as_float((int32(exponent) + int32(127)) << int32(23))
        return zero if x < low else poly * power
    return exp


def tanh(x):
    """Return the hyperbolic tangent of ``x``; in float32, with a relative error of 1e-6."""
    raise NotImplementedError  # compiled code calls the overload


# LLVM inlines this function. If numba inlined it together with exp, numba would warn of its own
# variables.
@overload(tanh, jit_options=INLINE)
def _overload_tanh(x):
    if x != types.float32:
        return lambda x: math.tanh(x)
    small, large, zero, one, two = map(np.float32, (0.3, 10., 0., 1., 2.))
    c3, c5, c7, c9 = map(np.float32, (-1 / 3, 2 / 15, -17 / 315, 62 / 2835))

    def tanh(x):
        size = abs(x)
        square = x * x
        series = x + x * square * (c3 + square * (c5 + square * (c7 + square * c9)))
        bounded = large if size > large else size  # tanh is 1 beyond, and exp would overflow
        far = one - two / (exp(two * bounded) + one)
        return series if size < small else (-far if x < zero else far)
    return tanh


@intrinsic
def number_of(typingctx, stored):
    """Return a bfloat16, given as 16 bits, as float32; values of other types unchanged."""
    if stored != uint16:
        return stored(stored), lambda context, builder, signature, args: args[0]

    def codegen(context, builder, signature, args):
        bits = builder.shl(builder.zext(args[0], _WORD), _WORD(16))
        return builder.bitcast(bits, ir.FloatType())
    return float32(uint16), codegen


@intrinsic
def add_and_store_eight(typingctx, array, position, number, table, row):
    """Store ``number + table[row]`` at ``array[position:position + 8]`` in one instruction."""
    def codegen(context, builder, signature, args):
        lane, short = context.get_value_type(array.dtype), ir.IntType(16)
        eight, zero = ir.VectorType(lane, 8), ir.Constant(ir.VectorType(_WORD, 8), [0] * 8)
        rows = context.make_array(table)(context, builder, args[3])
        first = builder.gep(rows.data, [builder.mul(args[4], args[4].type(8))])
        offsets = builder.load(builder.bitcast(first, ir.VectorType(short, 8).as_pointer()),
                               align=2)
        if lane != short:
            offsets = builder.zext(offsets, eight)
        undefined = ir.Constant(eight, ir.Undefined)
        first_lane = builder.insert_element(undefined, builder.trunc(args[2], lane), _WORD(0))
        splat = builder.shuffle_vector(first_lane, undefined, zero)
        data = context.make_array(array)(context, builder, args[0]).data
        target = builder.bitcast(builder.gep(data, [args[1]]), eight.as_pointer())
        builder.store(builder.add(offsets, splat), target, align=lane.width // 8)
    return types.void(array, position, number, table, row), codegen
