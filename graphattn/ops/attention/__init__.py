"""Attention over edges, its softmax included: the definition, and the ways to compute it."""

__all__ = []
