"""Code that all kernels for NVIDIA's GPUs share, and the backend of these kernels."""

__all__ = []
