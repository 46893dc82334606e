"""Tools of commands: atomic writes, bounded reads, bounded memory, trusted imports in configs, and
advice on missing packages."""

__all__ = []
