"""Untrusted configs: classes that they name are imported only from trusted packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ['TRUSTED', 'Untrusted', 'importing_only', 'trusting']

TRUSTED = 'graphattn', 'experiments', 'torch.nn'
_DENIED = re.compile(r"Importing '([^']*)' is not allowed")  # jsonargparse's message


_trusted: ContextVar[tuple[str, ...]] = ContextVar('trusted', default=())


class Untrusted(ValueError):
    """Raised if a config names a class that must not be imported."""


@contextmanager
def trusting(names: Iterable[str]) -> Iterator[None]:
    """Extend the trusted packages of :func:`importing_only` inside this context."""
    before = _trusted.set((*_trusted.get(), *filter(None, (name.strip(' .') for name in names))))
    try:
        yield
    finally:
        _trusted.reset(before)


@contextmanager
def importing_only(trust: Iterable[str] = ()) -> Iterator[None]:
    """Restrict configs that are parsed inside this context to classes of ``TRUSTED`` and ``trust``.

    The package that defines a class decides, not the one that it is imported from.

    Args:
        trust (iterable of str): Further packages, modules or classes, such as ``'mypackage.'``.

    Raises:
        Untrusted: The config names something else.
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
        raise Untrusted(f"{denied[1]} is not trusted: a config may name classes of "
                        f"{', '.join(allowed)}, because other classes could run any command; if "
                        f"you trust its author, add the package to 'trust'") from error
    finally:
        settings.update(before)
