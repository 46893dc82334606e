"""Checks of what a layer is given, and looks at tensors that wait for a GPU once."""

from graphattn._checks import (
    check_bool,
    check_choice,
    check_features,
    check_generator,
    check_ptr,
    check_sides,
    check_size,
)
from graphattn._tensors import looks_once, on_cpu

__all__ = ['check_bool', 'check_choice', 'check_features', 'check_generator', 'check_ptr',
           'check_sides', 'check_size', 'looks_once', 'on_cpu']
