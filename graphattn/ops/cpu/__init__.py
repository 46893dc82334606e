"""Code that all loops for CPUs share, compiled by numba, and the backend of these loops."""

__all__ = []
