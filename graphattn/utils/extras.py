"""What to do where a package is not installed that commands need."""

__all__ = ['with_advice']


def with_advice(error: Exception) -> str:
    """What an error says; of a package that is not installed also how to get it."""
    if not isinstance(error, ModuleNotFoundError):
        return str(error)
    return (f"{error}; pip install 'graphattn[experiments,analysis,text]' brings what commands "
            f"need, in a clone: pip install -e '.[experiments,analysis,text]'")
