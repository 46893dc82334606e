"""Samplers in Triton for NVIDIA's GPUs: a trial for each pair, or draws of keys for each query."""

from __future__ import annotations

from graphattn._compiler import CompilerMissing

try:
    import triton  # noqa: F401
except ImportError as error:
    raise CompilerMissing("Triton cannot be imported: pip install 'graphattn[gpu]'") from error

from graphattn.ops.sample.triton.draws import draw, thin  # noqa: E402
from graphattn.ops.sample.triton.trials import compare  # noqa: E402

__all__ = ['compare', 'draw', 'thin']
