"""Compilation of loops, and the cache of compiled functions."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from graphattn._compiler import CompilerMissing
from graphattn.utils.files import write_whole

try:
    import llvmlite
    import numba
    from llvmlite import binding
    from numba.core.caching import (
        CompileResultCacheImpl,
        FunctionCache,
        InTreeCacheLocator,
        UserWideCacheLocator,
    )
    from numba.core.serialize import dumps
except ImportError as error:
    raise CompilerMissing(f"compiled loops need numba, which cannot be imported ({error}): pip "
                          f"install numba") from error

# Sums may be reordered so that they run in vector registers; NaN and inf stay exact.
REORDERED_SUMS = frozenset({'reassoc', 'contract', 'nsz', 'arcp'})


def jit(*, inline: bool = False, fastmath: frozenset[str] = frozenset()) -> Callable:
    """Return a decorator that compiles a function with numba on its first call. The compiled
    function releases the lock of Python's interpreter (GIL).

    Compiled code is cached on disk, in the first writable folder of: ``NUMBA_CACHE_DIR``, the
    folder of the source, the user's cache, a temporary folder of the user. If none is writable,
    every process compiles again.

    Args:
        inline (bool): Inline the function into its compiled callers. Python cannot call it then.
        fastmath (frozenset): LLVM's fast-math flags.
    """
    def compile_later(function: Callable) -> Callable:
        compiled = numba.njit(nogil=True, error_model='numpy', fastmath=set(fastmath) or False,
                              forceinline=inline, no_cfunc_wrapper=True,
                              no_cpython_wrapper=inline)(function)
        try:
            compiled._cache = _Cache(function)
        except RuntimeError:
            _tell_once('No folder for compiled loops is writable, so every process compiles them '
                       'again; set NUMBA_CACHE_DIR to a writable folder')
        return compiled
    return compile_later


# The cache of compiled code #######################################################


class _UserFolder(UserWideCacheLocator):
    """Cache folder in the home folder; without one, as in some containers, numba's next choice."""

    def ensure_cache_path(self) -> None:
        if not os.path.isabs(self._cache_path):  # it begins with a literal '~'
            raise FileNotFoundError('the user has no home folder')
        super().ensure_cache_path()


class _TemporaryFolder(InTreeCacheLocator):
    """Cache folder in the temporary folder, where only this user can write."""

    # because the code in it is run
    def __init__(self, function: Callable, source: str):
        super().__init__(function, source)
        user = os.getuid() if hasattr(os, 'getuid') else os.getlogin()  # a uid needs no name
        self._own = os.path.join(tempfile.gettempdir(), f'graphattn-{user}')
        self._cache_path = os.path.join(self._own, self.get_suitable_cache_subpath(source))

    def ensure_cache_path(self) -> None:
        os.makedirs(self._own, mode=0o700, exist_ok=True)
        state = os.lstat(self._own)
        if hasattr(os, 'getuid') and (state.st_uid != os.getuid() or not stat.S_ISDIR(state.st_mode)
                                      or stat.S_IMODE(state.st_mode) & 0o077):
            raise PermissionError(f'{self._own} is not a folder of this user alone')
        super().ensure_cache_path()


class _Folders(CompileResultCacheImpl):
    _locator_classes = [_UserFolder if locator is UserWideCacheLocator else locator
                        for locator in CompileResultCacheImpl._locator_classes] + [_TemporaryFolder]


class _Files:
    """Files of the compiled code of one function, named by argument types and a digest of
    sources."""

    # numba's own cache does not check the functions that a function calls. It also numbers its
    # files in an index, so two processes that compile at once may read each other's code.
    def __init__(self, folder: str, name: str, source: Path):
        self._folder, self._name = Path(folder), name
        self._digest = digest_beside(source.parent)

    def load(self, key: tuple) -> object | None:
        try:
            return pickle.loads(self._path(key).read_bytes())
        except FileNotFoundError:
            return None

    def save(self, key: tuple, data: object) -> None:
        path = self._path(key)
        for old in {*self._folder.glob(f'{self._name}.*')} - {*self._folder.glob(self._current)}:
            old.unlink(missing_ok=True)
        write_whole(path, lambda temporary: temporary.write_bytes(dumps(data)))

    @property
    def _current(self) -> str:
        return f'{self._name}.{self._digest[:16]}.*'

    def _path(self, key: tuple) -> Path:
        versions = numba.__version__, llvmlite.__version__
        digest = hashlib.sha256(repr((*versions, key)).encode()).hexdigest()
        return self._folder / self._current.replace('*', f'{digest[:32]}.nbc')


class _Cache(FunctionCache):
    """Cache of compiled code in files; a file that cannot be read or saved means compiling
    again."""

    _impl_class = _Folders

    def __init__(self, function: Callable):
        super().__init__(function)
        source = Path(function.__code__.co_filename)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, source)

    def load_overload(self, signature, target_context):
        try:
            found = super().load_overload(signature, target_context)
        except (OSError, EOFError, pickle.UnpicklingError):
            found = None
        if found is None:
            _tell_once('graphattn compiles its loops for this machine, once: a few seconds each '
                       'for the first attention, training step, sampling and diffusion. They are '
                       'cached in %s; set NUMBA_CACHE_DIR for another folder, or run python -m '
                       'graphattn.compile to compile all at once', self.cache_path)
        return found

    def save_overload(self, signature, compiled) -> None:
        try:
            super().save_overload(signature, compiled)
        except OSError as error:
            _tell_once('Compiled loops cannot be cached (%s), so every process compiles them '
                       'again; set NUMBA_CACHE_DIR to a folder that has space', error)


def _tell_once(message: str, *values: object) -> None:
    if message not in _TOLD:
        _TOLD.add(message)
        logging.getLogger('graphattn').warning(message, *values)


_TOLD: set[str] = set()


def _digest(sources: Iterable[Path]) -> str:
    return hashlib.sha256(b'\0'.join(source.read_bytes() for source in sources)).hexdigest()


_PACKAGE = Path(__file__).parent
SOURCE_DIGEST = _digest([Path(__file__), _PACKAGE / '_splitmix.py', *sorted(
    path for loops in ('graphs/cpu*.py', 'ops/cpu/*.py', 'ops/*/cpu*.py', 'ops/*/cpu/*.py')
    for path in _PACKAGE.glob(loops))])


@cache
def digest_beside(folder: Path) -> str:
    """Return a digest of the sources that compiled functions in ``folder`` depend on."""
    # outside this package, also of the Python files beside
    if folder.is_relative_to(_PACKAGE):
        return SOURCE_DIGEST
    beside = _digest(sorted(folder.glob('*.py')))
    return hashlib.sha256((SOURCE_DIGEST + beside).encode()).hexdigest()


def give_way_symbol() -> str:
    """Register the function that yields the processor, and return its name for compiled code."""
    library = ctypes.windll.kernel32 if sys.platform == 'win32' else ctypes.CDLL(None)
    function = 'SwitchToThread' if sys.platform == 'win32' else 'sched_yield'
    try:
        address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value
    except AttributeError:
        raise CompilerMissing(f"compiled loops need the function {function!r} of the operating "
                              f"system, which this one lacks") from None
    binding.add_symbol('graphattn_give_way', address)
    return 'graphattn_give_way'


# Resolved only if compiled code calls it, so systems without it can still import this module.
madvise = numba.types.ExternalFunction('madvise', numba.types.int32(
    numba.types.intp, numba.types.uintp, numba.types.int32))
