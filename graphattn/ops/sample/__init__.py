"""Random graphs from a factor model: the definition, loops for CPUs, kernels for GPUs."""

__all__ = []
