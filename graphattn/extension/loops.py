"""Loops that are compiled once and kept on disk, and calls of them on all of torch's threads."""

from graphattn._jit import jit
from graphattn._threads import run_calls

__all__ = ['jit', 'run_calls']
