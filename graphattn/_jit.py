"""How loops are compiled, and a cache on disk that notices every change of what is compiled."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from graphattn._compiler import CompilerMissing

try:
    import numba
    from llvmlite import binding
    from numba.core.caching import FunctionCache, IndexDataCacheFile
except ImportError as error:
    raise CompilerMissing(f"compiled loops need numba, which cannot be imported ({error}): pip "
                          f"install numba") from error

# Sums may be reordered, which is what lets them run in vector registers; NaN and inf stay exact.
REORDERED_SUMS = frozenset({'reassoc', 'contract', 'nsz', 'arcp'})


def jit(*, inline: bool = False, fastmath: frozenset[str] = frozenset()) -> Callable:
    """Compiles a function by numba on its first call; it then runs without the interpreter's lock.

    Args:
        inline (bool): Its code becomes part of the functions that call it.
        fastmath (frozenset): LLVM's flags of that name.
    """
    def compile_later(function: Callable) -> Callable:
        compiled = numba.njit(nogil=True, error_model='numpy', fastmath=set(fastmath) or False,
                              forceinline=inline, no_cfunc_wrapper=True,
                              no_cpython_wrapper=inline)(function)
        compiled._cache = _StampedCache(function)
        return compiled
    return compile_later


class _StampedCache(FunctionCache):
    """numba's own cache looks at the file of a function alone, not at those that it calls."""

    has_told = False  # that something is compiled, which takes a while

    def __init__(self, function: Callable):
        super().__init__(function)
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base,
                                              SOURCE_DIGEST)

    def load_overload(self, *args):
        found = super().load_overload(*args)
        if found is None and not _StampedCache.has_told:
            _StampedCache.has_told = True
            if sys.stderr.isatty():
                print('graphattn compiles its loops for this machine, once: some seconds each',
                      file=sys.stderr)
        return found


def _digest_of_sources() -> str:
    package = Path(__file__).parent
    sources = [Path(__file__), *sorted(package.glob('kernels/cpu/*.py')),
               *sorted(package.glob('samplers/*.py'))]
    return hashlib.sha256(b'\0'.join(source.read_bytes() for source in sources)).hexdigest()


SOURCE_DIGEST = _digest_of_sources()


def give_way_symbol() -> str:
    """The name by which compiled code calls the operating system to let another thread run.

    Raises:
        CompilerMissing: There is no such function here; to call it would be the end of the process.
    """
    library = ctypes.windll.kernel32 if sys.platform == 'win32' else ctypes.CDLL(None)
    function = 'SwitchToThread' if sys.platform == 'win32' else 'sched_yield'
    try:
        address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value
    except AttributeError:
        raise CompilerMissing(f"compiled loops need the function {function!r} of the operating "
                              f"system, which this one lacks") from None
    binding.add_symbol('graphattn_give_way', address)
    return 'graphattn_give_way'
