"""The error for missing compilers, for modules that also work without numba or Triton."""


class CompilerMissing(ImportError):
    """Raised if numba or Triton, or a function of the system for compiled loops, is missing."""
