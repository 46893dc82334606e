"""Graphs as pictures, by matplotlib, which is loaded when something is drawn.

    figure = draw.blocks(graph)         # the mask of each block
    figure.savefig('graph.png')         # or .svg
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphattn._checks import check_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from graphattn.graph import BipartiteGraph

# Dark on light, told apart in grey and by the colour-blind.
EDGE, QUERY, KEY, COLOURS = '#08306b', '#d95f02', '#1b9e77', 'Blues'
MOST_LINES = 20_000  # of a bipartite picture
_MOST_CELLS = 512  # along a side of a mask: what is larger is drawn as densities


def mask(graph: BipartiteGraph, axes: Axes | None = None) -> Axes:
    """The pairs that are edges, queries from top to bottom and keys from left to right.

    A graph of more than 512 queries or keys is cut into as many cells, each as dark as it is dense.

    Args:
        graph (BipartiteGraph): Of any size.
        axes (matplotlib.axes.Axes, optional): Where to draw; a figure of its own if omitted.

    Example:
        >>> from graphattn import draw, patterns
        >>> axes = draw.mask(patterns.SlidingWindow(2).build(16))
        >>> axes.get_title()
        'density 28.9 %'
    """
    axes = _new_axes(4.2, 4.2) if axes is None else axes
    sides = graph.num_queries, graph.num_keys
    cells = [max(1, min(side, _MOST_CELLS)) for side in sides]
    place = [x.cpu().numpy() * cell // max(side, 1)
             for x, cell, side in zip((graph.query, graph.key), cells, sides)]
    edges = np.bincount(place[0] * cells[1] + place[1], minlength=cells[0] * cells[1])
    widths = [np.bincount(np.arange(side) * cell // max(side, 1), minlength=cell)
              for cell, side in zip(cells, sides)]
    share = edges.reshape(cells) / np.maximum(np.outer(*widths), 1)
    axes.imshow(share, cmap=COLOURS, vmin=0, vmax=1, interpolation='nearest', aspect='auto',
                extent=(-0.5, max(graph.num_keys, 1) - 0.5, max(graph.num_queries, 1) - 0.5, -0.5))
    axes.set(xlabel='key', ylabel='query', title=f'density {100 * graph.density():.3g} %')
    return axes


def bipartite(graph: BipartiteGraph, axes: Axes | None = None) -> Axes:
    """Keys above, queries below, and a line for each edge.

    Args:
        graph (BipartiteGraph): Of at most 20,000 edges.
        axes (matplotlib.axes.Axes, optional): Where to draw; a figure of its own if omitted.

    Raises:
        ValueError: There are more edges.
    """
    from matplotlib.collections import LineCollection

    if graph.num_edges > MOST_LINES:
        raise ValueError(f"'graph' must have at most {MOST_LINES:,} edges to be drawn as lines "
                         f"(got {graph.num_edges:,}); mask() draws any number")
    axes = _new_axes(7, 2.6) if axes is None else axes
    keys, queries = (_spread(side) for side in (graph.num_keys, graph.num_queries))
    ends = keys[graph.key.cpu().numpy()], queries[graph.query.cpu().numpy()]
    lines = np.stack([np.stack([x, np.full_like(x, height)], axis=1)
                      for x, height in zip(ends, (1, 0))], axis=1)
    opacity = float(np.clip(60 / max(graph.num_edges, 1), 0.06, 0.7))
    axes.add_collection(LineCollection(lines, colors=EDGE, linewidths=0.8, alpha=opacity))
    size = float(np.clip(600 / max(graph.num_keys, graph.num_queries, 1), 2, 40))
    axes.scatter(keys, np.ones(len(keys)), size, KEY, zorder=2)
    axes.scatter(queries, np.zeros(len(queries)), size, QUERY, zorder=2)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.15, 1.15), xticks=[])
    axes.set_yticks([0, 1], ['queries', 'keys'])
    axes.spines[:].set_visible(False)
    return axes


def blocks(graph: BipartiteGraph, titles: Sequence[str] | None = None, *,
           columns: int = 4) -> Figure:
    """The mask of each block side by side, such as each head's of each sequence.

    Args:
        graph (BipartiteGraph): Its blocks are those of :meth:`BipartiteGraph.unbatch`.
        titles (sequence of str, optional): One for each block; numbers if omitted.
        columns (int): Pictures in a row.

    Raises:
        ValueError: There is another number of titles.
    """
    from matplotlib.figure import Figure

    check_size('columns', columns, 1)
    parts = graph.unbatch()
    titles = [f'block {number}' for number in range(len(parts))] if titles is None else titles
    if len(titles) != len(parts):
        raise ValueError(f"'titles' must be one for each of the {len(parts)} blocks (got "
                         f"{len(titles)})")
    columns = max(1, min(columns, len(parts)))
    rows = max(1, -(-len(parts) // columns))
    figure = Figure(figsize=(3 * columns, 3.1 * rows), layout='constrained')
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, part, title in zip(panels, parts, titles):
        mask(part, axes).set_title(f'{title}: {100 * part.density():.3g} %', fontsize=10)
    for axes in panels[len(parts):]:
        axes.remove()
    return figure


def html(graph: BipartiteGraph, text: str) -> str:
    """A small picture of a graph above a line of text, for notebooks; the line alone where
    matplotlib is not installed."""
    from html import escape

    line = f'<pre>{escape(text)}</pre>'
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return line
    figure = Figure(figsize=(2.2, 2.2), layout='constrained')
    axes = mask(graph, figure.subplots())
    axes.set(xlabel='', ylabel='', title='')
    axes.tick_params(labelsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=80)
    picture = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{picture}">{line}'


def _new_axes(width: float, height: float) -> Axes:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout='constrained').subplots()


def _spread(count: int) -> np.ndarray:
    """Places of ``count`` nodes from 0 to 1."""
    return np.linspace(0, 1, count) if count > 1 else np.full(count, 0.5)
