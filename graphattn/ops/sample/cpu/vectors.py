"""LLVM instructions for bfloat16 and for SIMD stores, as numba intrinsics."""

from __future__ import annotations

from llvmlite import ir
from numba import float32, types, uint16
from numba.extending import intrinsic

_WORD = ir.IntType(32)


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
