"""Dot products of queries and keys on edges."""

__all__ = []
