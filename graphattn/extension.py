"""Tools for custom layers and loops: checks of the arguments of a layer, host copies of tensors,
compiled loops that are cached on disk, and parallel calls on torch's threads."""

from graphattn._checks import (
    check_bool,
    check_choice,
    check_features,
    check_generator,
    check_ptr,
    check_sides,
    check_size,
)
from graphattn._jit import jit
from graphattn._tensors import cache_host_copies, host_copy
from graphattn._threads import run_calls

__all__ = ['cache_host_copies', 'check_bool', 'check_choice', 'check_features', 'check_generator',
           'check_ptr', 'check_sides', 'check_size', 'host_copy', 'jit', 'run_calls']
