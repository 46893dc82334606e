"""Code that kernels for NVIDIA's GPUs share (launches, rows, softmax and tiles), and the backend of
these kernels."""

__all__ = []
