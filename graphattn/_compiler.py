"""Availability of compiled loops, for modules that work without numba or Triton."""


class CompilerMissing(ImportError):
    """numba or Triton cannot be imported, or the system lacks what compiled loops call.

    Only this is a reason to go on without them: whatever else goes wrong is a fault, which slower
    ways would hide.
    """
