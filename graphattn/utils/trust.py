"""What is imported: classes that configs name, from trusted packages only; the modules of a user by
``--import``; and advice on missing packages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path

__all__ = ['TRUSTED', 'Untrusted', 'importing', 'importing_only', 'trusting', 'with_advice']


TRUSTED = 'graphattn', 'experiments', 'torch.nn', 'torch_geometric.transforms'
_IMPORTED = 'GRAPHATTN_IMPORT'
_DENIED = re.compile(r"Importing '([^']*)' is not allowed")  # jsonargparse's message


_trusted: ContextVar[tuple[str, ...]] = ContextVar('trusted', default=())


class Untrusted(ValueError):
    """Raised if a config names a class that must not be imported."""


@contextmanager
def trusting(names: Iterable[str]) -> Iterator[None]:
    """Let configs also name classes of the packages or modules ``names``, or the classes ``names``
    themselves, where :func:`importing_only` is entered inside this context."""
    before = _trusted.set((*_trusted.get(), *filter(None, (name.strip(' .') for name in names))))
    try:
        yield
    finally:
        _trusted.reset(before)


@contextmanager
def importing_only(trust: Iterable[str] = ()) -> Iterator[None]:
    """Import only classes of the packages ``TRUSTED`` and ``trust`` when configs are parsed, inside
    this context.

    A class belongs to the package that defines it, even if the config imports it from another
    package.

    Args:
        trust (iterable of str): Further packages, modules or classes, such as ``'mypackage.'``.

    Raises:
        Untrusted: The config names a class of another package.
    """
    import jsonargparse

    # jsonargparse's policy is global, so the previous one is restored afterwards.
    settings = jsonargparse._common.parsing_settings
    before = dict(settings)
    try:
        with trusting(trust):
            allowed = [*TRUSTED, *_trusted.get()]
            jsonargparse.set_parsing_settings(import_path_denylist=['*'],
                                              import_path_allowlist=allowed)
            yield
    except Exception as error:
        if (denied := _DENIED.search(str(error))) is None:
            raise
        raise Untrusted(f"{denied[1]} is not trusted, because a config may name only classes of "
                        f"{', '.join(allowed)}; if you trust the author of the config, add the "
                        f"package of this class to 'trust', or import it by --import") from error
    finally:
        settings.update(before)


@contextmanager
def importing(words: Sequence[str]) -> Iterator[list[str]]:
    """Import the modules or files that ``--import`` names among the words of a command line, trust
    them inside this context, and yield the other words."""
    rest, others, before = iter(words), [], os.environ.get(_IMPORTED, '')
    named = before.split(os.pathsep)
    for word in rest:
        if word == '--import' or word.startswith('--import='):
            named.append(next(rest, '') if word == '--import' else word[9:])
        else:
            others.append(word)
    # for processes that the command starts, whose words are the others
    os.environ[_IMPORTED] = os.pathsep.join(dict.fromkeys(filter(None, named)))
    if {'-h', '--help'} & set(words):  # help is printed without the libraries that modules import
        named = []
    try:
        with trusting([_imported(name) for name in named if name]):
            yield others
    finally:
        os.environ[_IMPORTED] = before


def _imported(name: str) -> str:
    file = Path(name).resolve() if name.endswith('.py') else None
    module, folder = (file.stem, file.parent) if file else (name, Path.cwd())
    if str(folder) not in sys.path:  # at the end, so that the folder hides no other package
        sys.path.append(str(folder))
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f'{module}.'.startswith(f'{error.name}.'):
            raise
        raise ImportError(f"'import' must name a module in {folder}, or an installed one (got "
                          f"{name!r}); write --import mine for the file mine.py") from error
    if file and Path(found.__file__ or '').resolve() != file:
        raise ImportError(f"'import' must name a file whose module is not installed (got {name!r}, "
                          f"but {module!r} is {found.__file__}); rename the file")
    return module


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
