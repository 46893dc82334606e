"""Helpers of commands: atomic writes, bounded reads, bounded memory, imports only of trusted
classes in configs, and advice on missing packages."""

__all__ = []
