"""Compiled loops, cached on disk, and parallel calls on torch's threads."""

from graphattn._jit import jit
from graphattn._threads import run_calls

__all__ = ['jit', 'run_calls']
