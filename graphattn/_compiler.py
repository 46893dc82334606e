"""The error for missing compilers, for modules that also work without numba or Triton."""


class CompilerMissing(ImportError):
    """Raised if numba or Triton cannot be imported, or the system lacks a function that compiled
    loops call.

    Callers fall back to slower methods only on this error, because a fallback on other errors would
    hide faults.
    """
