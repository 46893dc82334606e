"""Kernels of other libraries, ready to be examined: a page for each.

``python -m graphattn.testing.adapters NAME ...`` examines some, and without names all that run
here. A page imports its library when it is called.
"""

from importlib import import_module
from pkgutil import iter_modules

from graphattn.testing.adapters.adapter import Adapter


def adapters() -> dict[str, Adapter]:
    pages = [name for _, name, _ in iter_modules(__path__) if name not in ('adapter', '__main__')]
    return {name: adapter for page in pages for name, adapter in
            import_module(f'{__name__}.{page}').ADAPTERS.items()}


__all__ = ['Adapter', 'adapters']
