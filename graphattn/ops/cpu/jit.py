"""The options that all compiled loops of this folder share."""

from graphattn._jit import REORDERED_SUMS
from graphattn._jit import jit as compile_by

# The same for overloads.
INLINE = {'forceinline': True, 'error_model': 'numpy', 'fastmath': set(REORDERED_SUMS)}
jit = compile_by(fastmath=REORDERED_SUMS)
jit_inline = compile_by(fastmath=REORDERED_SUMS, inline=True)
