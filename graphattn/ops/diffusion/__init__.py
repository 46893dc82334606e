"""Diffusion of values over several hops by given weights of edges, and attention with diffusion in
one operation."""

__all__ = []
