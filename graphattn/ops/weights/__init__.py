"""Softmax weights of edges, and weighted sums of values."""

__all__ = []
