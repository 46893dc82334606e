"""Attention over edges, including its softmax: the definition and the kernels."""

__all__ = []
