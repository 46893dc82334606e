"""Pictures of the masks of graphs, for notebooks."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graphattn._checks import check_edge_index, check_range, check_strided
from graphattn.graphs.pairs import plain
from graphattn.style import SHADES, in_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from graphattn.graphs.graph import BipartiteGraph

Weights = Tensor | tuple[Tensor, Tensor]  # on edges: of known order, or beside their edge_index
_MAX_CELLS = 512  # per side; larger masks are drawn as densities


@in_style()
def draw_mask(graph: BipartiteGraph, axes: Axes | None, weights: Weights | None = None) -> Axes:
    weights = None if weights is None else shades_of(graph, weights, 1)[:, 0].numpy()
    axes = new_axes(4.2, 4.2) if axes is None else axes
    sides = graph.num_queries, graph.num_keys
    cells = [max(1, min(side, _MAX_CELLS)) for side in sides]
    place = [x.cpu().numpy() * cell // max(side, 1)
             for x, cell, side in zip((graph.query, graph.key), cells, sides)]
    edges = np.bincount(place[0] * cells[1] + place[1], weights, minlength=cells[0] * cells[1])
    widths = [np.bincount(np.arange(side) * cell // max(side, 1), minlength=cell)
              for cell, side in zip(cells, sides)]
    share = edges.reshape(cells) / np.maximum(np.outer(*widths), 1)
    darkest = 1 if weights is None else share.max() or 1
    axes.imshow(share, cmap=SHADES, vmin=0, vmax=darkest, aspect='auto',
                extent=(-0.5, max(graph.num_keys, 1) - 0.5, max(graph.num_queries, 1) - 0.5, -0.5))
    axes.set(xlabel='key', ylabel='query', title=f'density {100 * graph.density():.3g} %')
    tick_whole_numbers(axes.xaxis, axes.yaxis)
    return axes


def html(graph: BipartiteGraph, text: str) -> str:
    """Return HTML with a small picture of a graph above a line of text, without matplotlib the
    text."""
    line = f'<pre>{escape(text)}</pre>'
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return line
    figure = Figure(figsize=(2.2, 2.2), layout='constrained')
    axes = draw_mask(graph, figure.subplots())
    axes.set(xlabel='', ylabel='', title='')
    axes.tick_params(labelsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=80)
    picture = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{picture}">{line}'


def new_axes(width: float, height: float) -> Axes:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout='constrained')[1]


def shades_of(graph: BipartiteGraph, weights: Weights, dimensions: int) -> Tensor:  # 1 or 2
    """Check weights on edges, and return them in the order of the graph, float64 on the CPU."""
    edge_index, weights = weights if isinstance(weights, tuple) else (None, weights)
    check_strided('weights', weights)
    if weights.shape[:1] != (graph.num_edges,) or weights.dim() > dimensions:
        shape = ' or '.join(['[num_edges]', '[num_edges, heads]'][:dimensions])
        raise ValueError(f"'weights' must have shape {shape} with num_edges={graph.num_edges} (got "
                         f"shape {list(weights.shape)})")
    if edge_index is not None:
        weights = weights[_order_of(graph, edge_index).to(weights.device)]
    elif graph.is_reordered:
        raise ValueError("'weights' must be a pair (edge_index, alpha) for a graph that sorted its "
                         "edges, because the order of the weights is unknown (got a Tensor); pass "
                         "(graph.edge_index, alpha) if the weights are in the order of the graph")
    per_edge = weights.detach().double().unsqueeze(-1).flatten(1).cpu()
    others = per_edge[~((per_edge >= 0) & per_edge.isfinite())]
    if others.numel():
        raise ValueError(f"'weights' must be finite and not negative (got {others[0].item()} and "
                         f"{others.numel() - 1} more invalid values)")
    return per_edge


def _order_of(graph: BipartiteGraph, edge_index: Tensor) -> Tensor:
    check_edge_index(edge_index)
    check_range(edge_index, graph.num_queries, graph.num_keys)
    given, own = (key.long() + graph.num_keys * query.long() for key, query in (
        plain(edge_index), (graph.key, graph.query)))
    given, order = given.sort()
    if not torch.equal(given, own):
        raise ValueError("'weights' must have the edges of 'graph' (got a pair with other edges)")
    return order


def tick_whole_numbers(*sides: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    for side in sides:
        side.set_major_locator(MaxNLocator('auto', steps=[1, 2, 2.5, 5, 10], integer=True,
                                           min_n_ticks=1))
