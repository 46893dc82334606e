"""Checks of the arguments of a layer, and host copies of tensors."""

from graphattn._checks import (
    check_bool,
    check_choice,
    check_features,
    check_generator,
    check_ptr,
    check_sides,
    check_size,
)
from graphattn._tensors import cache_host_copies, host_copy

__all__ = ['check_bool', 'check_choice', 'check_features', 'check_generator', 'check_ptr',
           'check_sides', 'check_size', 'cache_host_copies', 'host_copy']
