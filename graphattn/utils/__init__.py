"""Tools of commands: files that are written whole or not at all, reading within bounds, memory
within bounds, configs that import nothing untrusted, and advice on missing packages."""

__all__ = []
