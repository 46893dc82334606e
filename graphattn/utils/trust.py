"""Configs of other people are data: what they name is imported only where it is trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ['TRUSTED', 'Untrusted', 'importing_only', 'trusting']

TRUSTED = 'graphattn', 'experiments', 'torch.nn'
_DENIED = re.compile(r"Importing '([^']*)' is not allowed")  # as jsonargparse says it


_trusted: ContextVar[tuple[str, ...]] = ContextVar('trusted', default=())


class Untrusted(ValueError):
    """Says that a config names something that may not be imported."""


@contextmanager
def trusting(names: Iterable[str]) -> Iterator[None]:
    """Let :func:`importing_only` trust more packages meanwhile, wherever it is entered."""
    before = _trusted.set((*_trusted.get(), *filter(None, (name.strip(' .') for name in names))))
    try:
        yield
    finally:
        _trusted.reset(before)


@contextmanager
def importing_only(trust: Iterable[str] = ()) -> Iterator[None]:
    """Let configs that are parsed meanwhile name classes of ``TRUSTED`` packages and of ``trust``.

    A class counts where it is defined, not where it is imported from. Nothing else is imported.

    Args:
        trust (iterable of str): More packages, modules or classes, such as ``'mypackage.'``.

    Raises:
        Untrusted: The config names something else.
    """
    import jsonargparse

    # The policy of jsonargparse is the process's own; that of the caller comes back afterwards.
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
                        f"{', '.join(allowed)}, because others can run any command; if you trust "
                        f"its author, add the package to 'trust'") from error
    finally:
        settings.update(before)
