"""What commands need around graphs: files that are whole or not there, files read within bounds,
memory within bounds, configs that import nothing untrusted, and advice on missing packages."""

__all__ = []
