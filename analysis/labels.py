"""Labels of graphs in figures.

matplotlib reads the text between two ``$`` as mathematics, so labels are escaped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from matplotlib.figure import Figure


def as_text(label: str) -> str:
    """Return ``label`` with every ``$`` escaped, because matplotlib would read text between two
    ``$`` as mathematics."""
    return label.replace('$', r'\$')


def labels_as_text(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Return the drawing function ``draw`` with escaped labels, see :func:`as_text`. It escapes the
    keys of every argument that is a dict."""
    @functools.wraps(draw)
    def drawn(*arguments: object) -> Figure:
        return draw(*({as_text(label): value for label, value in given.items()}
                      if isinstance(given, dict) else given for given in arguments))
    return drawn
