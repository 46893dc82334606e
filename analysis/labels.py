"""Labels of graphs in figures.

matplotlib reads the text between two ``$`` as mathematics, so labels are escaped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from textwrap import shorten

from matplotlib.figure import Figure


def as_text(label: str) -> str:
    """Return ``label`` with every ``$`` escaped, because matplotlib would read text between two
    ``$`` as mathematics."""
    return label.replace('$', r'\$')


def name_tokens(figure: Figure, names: Sequence[str] | None) -> None:
    """Label the keys and queries of the masks in a figure with the names of the tokens."""
    def name(place: float, _: int) -> str:
        is_token = place == int(place) and 0 <= place < len(names)
        return as_text(shorten(names[int(place)], 16, placeholder='...')) if is_token else ''

    for axes in figure.axes if names else ():
        for axis in axes.xaxis, axes.yaxis:
            if axis.get_label_text() in ('key', 'key j', 'query', 'query i'):
                axis.set_major_formatter(name)
                axis.set_tick_params(rotation=90 if axis is axes.xaxis else 0)


def labels_as_text(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Return the drawing function ``draw`` with escaped labels, see :func:`as_text`. It escapes the
    keys of every argument that is a dict."""
    @functools.wraps(draw)
    def drawn(*arguments: object) -> Figure:
        return draw(*({as_text(label): value for label, value in given.items()}
                      if isinstance(given, dict) else given for given in arguments))
    return drawn
