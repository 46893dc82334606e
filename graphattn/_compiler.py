"""Availability of compiled loops, for modules that work without numba or Triton."""


class CompilerMissing(ImportError):
    """Raised if numba or Triton cannot be imported, or the system lacks a function that compiled
    loops call.

    Callers fall back to slower methods on this error only, because a fallback would hide other
    faults.
    """
