"""Tools for layers and loops of your own: this library's checks of arguments, and its compiler."""

__all__ = []
