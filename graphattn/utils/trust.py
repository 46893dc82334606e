"""Reading of untrusted configs, in which the named classes are imported only from trusted
packages."""

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
                        f"package of this class to 'trust'") from error
    finally:
        settings.update(before)
