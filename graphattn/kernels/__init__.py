"""One meaning of attention over edges, several speeds: a backend is one file, or one folder.

Each says what it can do (:class:`graphattn.kernels.backend.Backend`). :mod:`operators` and
:mod:`cpu` are what the backend ``'numba'`` is made of.
"""

from difflib import get_close_matches
from importlib import import_module

from graphattn.kernels.backend import Backend, LogitTerms

_MODULES = {'reference': 'reference', 'gather': 'gather', 'gather_ext': 'gather_ext', 'csr': 'csr',
            'numba': 'cpu', 'sdpa': 'sdpa'}
BACKENDS = tuple(_MODULES)


def load(name: str) -> Backend:
    """The backend called ``name``, imported on first use.

    Raises:
        ValueError: There is no such backend.
        ImportError: The backend needs a package that is not installed.
    """
    if name not in _MODULES:
        near = get_close_matches(str(name), BACKENDS)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ''
        raise ValueError(f"'backend' is unknown (got {name!r}); {hint}there are 'auto', "
                         f"{', '.join(map(repr, BACKENDS))}")
    return import_module(f'graphattn.kernels.{_MODULES[name]}').BACKEND


__all__ = ['BACKENDS', 'Backend', 'LogitTerms', 'load']
