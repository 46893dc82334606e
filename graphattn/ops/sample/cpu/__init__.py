"""Samplers in loops for CPUs: a pass over rows, each with a random stream of its own."""

__all__ = []
