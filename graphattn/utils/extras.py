"""Advice on missing packages and modules that commands need."""

import re

__all__ = ['with_advice']


# jsonargparse repeats it at each level of a config, with the values that it did not read.
_UNKNOWN_CLASS = re.compile(r"class_path '((\w+)[\w.]*)':\s+No module named '(\2[\w.]*)'")


def with_advice(error: Exception) -> str:
    """Return the message of ``error``. If a package or a module of the user is missing, the message
    says how to install or to import it."""
    if found := _UNKNOWN_CLASS.search(str(error)):
        return (f"no module named {found[3]!r}, which the config needs for {found[1]!r}; if the "
                f"module is yours, pass --import {found[3]} in the folder of {found[2]}.py")
    if not isinstance(error, ModuleNotFoundError):
        return str(error)
    return (f"{error}; pip install 'graphattn[experiments,analysis,text]' installs the packages of "
            f"all commands, in a clone: pip install -e '.[experiments,analysis,text]'")
