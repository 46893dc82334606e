"""What loops for CPUs share: vectors, rows, chunks of keys, work items; and their backend."""

__all__ = []
