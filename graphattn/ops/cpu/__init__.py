"""Shared parts of loops for CPUs: vectors, rows, chunks of keys, work items; and their backend."""

__all__ = []
