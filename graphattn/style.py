"""The colours and font sizes of all figures of this project.

    with style.in_style():
        figure = draw.segments(graph)
        figure.savefig('graph.svg')
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ['COLOURS', 'EDGE', 'KEY', 'QUERY', 'SHADES', 'in_style']

# Ten colours that are visible on white paper. The first six can be distinguished by colour-blind
# people. The eighth is grey, which figures use for baselines.
COLOURS = ('#0072b2', '#d55e00', '#009e73', '#740d25', '#cc8850',
           '#5a96ff', '#54284f', '#808080', '#915500', '#6b6b00')
EDGE, QUERY, KEY = '#08306b', COLOURS[1], COLOURS[2]
SHADES = 'Blues'  # from white to dark
_SIZE = 10  # font size in points


@contextmanager
def in_style() -> Iterator[None]:
    """Draw and save figures with the colours and font sizes of this project, inside this context.

    ``'C0'`` to ``'C9'`` are :data:`COLOURS`, and sizes such as ``'small'`` are relative to the font
    size of the project. The context can also be used as a decorator of functions, ``@in_style()``.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import matplotlib
        >>> from graphattn.style import COLOURS, in_style
        >>> with in_style():
        ...     matplotlib.colors.to_hex('C1') == COLOURS[1]
        True
    """
    try:
        from matplotlib import cycler, rc_context
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from error

    with rc_context({
        'font.size': _SIZE, 'axes.titlesize': 'medium', 'figure.titlesize': 'medium',
        'figure.labelsize': 'medium',
        'legend.fontsize': 'small', 'xtick.labelsize': 'small', 'ytick.labelsize': 'small',
        'axes.prop_cycle': cycler(color=COLOURS), 'image.cmap': SHADES, 'grid.alpha': 0.3,
        'savefig.dpi': 110, 'savefig.bbox': 'tight',  # keeps long titles
    }):
        yield
