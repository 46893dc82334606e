"""Operations over edges, defined in ``reference``. Each has a folder: ``schema`` declares the
operators, ``cpu`` and ``triton`` are kernels. Folders ``ops/cpu`` and ``ops/triton`` have what
kernels of a device share, and its backend (:class:`graphattn.ops.backend.Backend`)."""

from importlib import import_module

from graphattn._checks import did_you_mean
from graphattn.ops import reference
from graphattn.ops.attention import gather, sdpa
from graphattn.ops.backend import Backend, EdgeFeatures, LogitTerms, ProjectedFeatures

_LOADED = {module.BACKEND.name: module.BACKEND for module in (reference, gather, sdpa)}
_ON_FIRST_USE = {'gather_ext': 'graphattn.ops.attention.gather_ext',
                 'numba': 'graphattn.ops.cpu.backend', 'triton': 'graphattn.ops.triton.backend'}
BACKENDS = ('reference', 'gather', 'gather_ext', 'numba', 'triton', 'sdpa')


def load(name: str) -> Backend:
    """Return the backend called ``name``. A backend that is slow to import or needs another package
    is imported on first use.

    Raises:
        ValueError: There is no such backend.
        ImportError: The backend needs a package that is not installed.
    """
    if name in _LOADED:
        return _LOADED[name]
    if name not in _ON_FIRST_USE:
        raise ValueError(f"'backend' must be one of 'auto', {', '.join(map(repr, BACKENDS))} (got "
                         f"{name!r}){did_you_mean(name, BACKENDS)}")
    _LOADED[name] = import_module(_ON_FIRST_USE[name]).BACKEND
    return _LOADED[name]


def check_backend(name: str) -> None:
    """Raise an error unless ``name`` is ``'auto'`` or the name of a backend that :func:`load` can
    return."""
    if name != 'auto':
        load(name)


__all__ = ['BACKENDS', 'Backend', 'EdgeFeatures', 'LogitTerms', 'ProjectedFeatures',
           'check_backend', 'load']
