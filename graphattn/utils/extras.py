"""Advice where a package is missing that commands need."""

__all__ = ['with_advice']


def with_advice(error: Exception) -> str:
    """Return an error's message, for a missing package with how to install it."""
    if not isinstance(error, ModuleNotFoundError):
        return str(error)
    return (f"{error}; pip install 'graphattn[experiments,analysis,text]' brings what commands "
            f"need, in a clone: pip install -e '.[experiments,analysis,text]'")
