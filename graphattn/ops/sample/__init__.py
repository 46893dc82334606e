"""The operation that draws random graphs from a factor model: its definition, loops for CPUs and
kernels for GPUs."""

__all__ = []
