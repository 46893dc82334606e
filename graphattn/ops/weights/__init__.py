"""Softmax weights of edges, and sums of values by them."""

__all__ = []
