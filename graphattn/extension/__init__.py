"""Tools for custom layers and loops: argument checks, and the compiler of loops."""

__all__ = []
