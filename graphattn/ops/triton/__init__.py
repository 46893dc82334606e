"""What kernels for NVIDIA's GPUs share: launches, rows, softmax, tiles; and their backend."""

__all__ = []
