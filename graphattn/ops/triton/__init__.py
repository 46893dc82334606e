"""Shared parts of kernels for NVIDIA's GPUs: launches, rows, softmax, tiles; and their backend."""

__all__ = []
