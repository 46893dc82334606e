"""The options of numba that all loops for CPUs share."""

from graphattn._jit import REORDERED_SUMS
from graphattn._jit import jit as compile_by

# The options of ``jit_inline``, for functions that ``numba.extending.overload`` implements.
INLINE = {'forceinline': True, 'error_model': 'numpy', 'fastmath': set(REORDERED_SUMS)}
jit = compile_by(fastmath=REORDERED_SUMS)
jit_inline = compile_by(fastmath=REORDERED_SUMS, inline=True)
