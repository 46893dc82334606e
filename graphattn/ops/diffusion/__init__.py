"""Two operations: diffusion of values over several hops with given weights of edges, and attention
followed by this diffusion."""

__all__ = []
