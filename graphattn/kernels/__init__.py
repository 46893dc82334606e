"""One meaning of attention over edges, several speeds: a backend is one file, or one folder.

Each says what it can do (:class:`graphattn.kernels.backend.Backend`). :mod:`cpu` is the backend
``'numba'``, and the folder ``triton`` the one for GPUs; :mod:`operators` is what both implement.
"""

from difflib import get_close_matches
from importlib import import_module

from graphattn.kernels import csr, gather, reference, sdpa
from graphattn.kernels.backend import Backend, EdgeFeatures, LogitTerms

_LOADED = {module.BACKEND.name: module.BACKEND for module in (reference, gather, csr, sdpa)}
_ON_FIRST_USE = {'gather_ext': 'graphattn.kernels.gather_ext', 'numba': 'graphattn.kernels.cpu',
                 'triton': 'graphattn.kernels.triton', 'flex': 'graphattn.kernels.flex'}
BACKENDS = ('reference', 'gather', 'gather_ext', 'csr', 'numba', 'triton', 'sdpa', 'flex')


def load(name: str) -> Backend:
    """The backend called ``name``, imported on first use if that takes long or needs another
    package.

    Raises:
        ValueError: There is no such backend.
        ImportError: The backend needs a package that is not installed.
    """
    if name in _LOADED:
        return _LOADED[name]
    if name not in _ON_FIRST_USE:
        near = get_close_matches(str(name), BACKENDS)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ''
        raise ValueError(f"'backend' is unknown (got {name!r}); {hint}there are 'auto', "
                         f"{', '.join(map(repr, BACKENDS))}")
    _LOADED[name] = import_module(_ON_FIRST_USE[name]).BACKEND
    return _LOADED[name]


def check_backend(name: str) -> None:
    """Raise as :func:`load` does, unless ``name`` is ``'auto'``."""
    if name != 'auto':
        load(name)


__all__ = ['BACKENDS', 'Backend', 'EdgeFeatures', 'LogitTerms', 'check_backend', 'load']
