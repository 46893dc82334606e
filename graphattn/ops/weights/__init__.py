"""Two operations: the attention weights of edges, and weighted sums of values."""

__all__ = []
