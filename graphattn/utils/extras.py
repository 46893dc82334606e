"""Advice on missing packages that commands need."""

__all__ = ['with_advice']


def with_advice(error: Exception) -> str:
    """Return the message of ``error``. If a package is missing, the message ends with a command
    that installs it."""
    if not isinstance(error, ModuleNotFoundError):
        return str(error)
    return (f"{error}; pip install 'graphattn[experiments,analysis,text]' installs the packages of "
            f"all commands, in a clone: pip install -e '.[experiments,analysis,text]'")
