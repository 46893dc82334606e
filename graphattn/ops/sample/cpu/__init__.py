"""Samplers for CPUs: compiled loops over rows, each with a random stream of its own."""

__all__ = []
