"""The options that all compiled loops of this folder share."""

from graphattn._jit import REORDERED_SUMS
from graphattn._jit import jit as compile_by

jit = compile_by(fastmath=REORDERED_SUMS)
jit_inline = compile_by(fastmath=REORDERED_SUMS, inline=True)
