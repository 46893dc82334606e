"""Attention along edges: the definition, the kernels, and backends that call other libraries."""

__all__ = []
