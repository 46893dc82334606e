"""Advice on packages that commands need."""

__all__ = ['with_advice']


def with_advice(error: Exception) -> str:
    """Return an error's message, with an install command if a package is missing."""
    if not isinstance(error, ModuleNotFoundError):
        return str(error)
    return (f"{error}; pip install 'graphattn[experiments,analysis,text]' installs the packages of "
            f"all commands, in a clone: pip install -e '.[experiments,analysis,text]'")
