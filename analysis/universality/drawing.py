"""The figure of ``python -m analysis.universality``."""

from __future__ import annotations

import math
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.labels import labels_as_text
from analysis.universality.question import Universality
from graphattn import BipartiteGraph

_CELLS = 512  # maximum per side; an edge darkens its cell


@labels_as_text
def draw(graphs: dict[str, BipartiteGraph], result: Universality) -> Figure:
    """Draw the graphs that layers apply in turn, and the fraction of pairs of tokens that are
    reached after each layer."""
    columns = min(len(graphs) + 1, 4)
    rows = math.ceil((len(graphs) + 1) / columns)
    figure = Figure(figsize=(2.3 * columns, 2.7 * rows), layout='constrained')
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (label, graph) in zip(panels, graphs.items()):
        _draw_edges(axes, graph)
        axes.set_title(fill(label, 28), fontsize='small')
    _draw_reach(panels[len(graphs)], result)
    for axes in panels[len(graphs) + 1:]:
        axes.axis('off')
    return figure


def _draw_edges(axes: Axes, graph: BipartiteGraph) -> None:
    n = max(graph.num_queries, 1)
    cells = min(n, _CELLS)
    has_edge = np.histogram2d(graph.query.numpy(), graph.key.numpy(), bins=cells,
                              range=[[0, n], [0, n]])[0] > 0
    axes.imshow(has_edge, vmin=0, vmax=1, extent=(-0.5, n - 0.5, n - 0.5, -0.5))
    axes.set(xlabel='key j', ylabel='query i')
    axes.locator_params(integer=True, min_n_ticks=1)


def _draw_reach(axes: Axes, result: Universality) -> None:
    layer = np.arange(1, result.reach.size + 1)
    axes.plot(layer, 100 * result.reach, marker='o' if layer.size < 40 else None)
    axes.axhline(100, color='0.7', linewidth=1, zorder=0)
    title = f's = {result.layers}' if result.layers else 'never all'
    axes.set_title(f'pairs reached: {title}', fontsize='small')
    axes.set(xlabel='layers', ylabel='pairs reached [%]', ylim=(0, 105))
    axes.locator_params(axis='x', integer=True, min_n_ticks=1)
    axes.margins(x=0.1)
    axes.set_box_aspect(1)
