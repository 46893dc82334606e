"""What layers and loops of your own need: this library's checks of arguments, and its compiler."""

__all__ = []
