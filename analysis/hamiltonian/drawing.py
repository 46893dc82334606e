"""The figure of ``python -m analysis.hamiltonian``."""

from __future__ import annotations

from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.hamiltonian.question import HamiltonianPath
from analysis.labels import labels_as_text
from graphattn import BipartiteGraph

_EDGE, _STEP = 'C5', 'C1'


@labels_as_text
def draw(graphs: dict[str, list[BipartiteGraph]],
         results: dict[str, list[HamiltonianPath]]) -> Figure:
    """Draw the edges of the first graph of each label, once in token order and once in the order of
    the path. Each label has a row."""
    figure = Figure(figsize=(8.2, 4.6 * len(graphs)), layout='constrained')
    for (before, after), label in zip(figure.subplots(len(graphs), 2, squeeze=False), graphs):
        graph, result = graphs[label][0], results[label][0]
        _draw_edges(before, graph, np.arange(graph.num_queries), result.path)
        others = f', the first of {len(graphs[label])}' if len(graphs[label]) > 1 else ''
        before.set_title(fill(label + others, 45))
        before.set(xlabel='key j', ylabel='query i')
        if result.path is None:
            answer = 'No Hamiltonian path' if result.exists is False else 'Not known'
            reason = fill(f'{answer} ({result.method}): {result.reason}', 40)
            after.text(0.5, 0.5, reason, ha='center', va='center', transform=after.transAxes)
            after.axis('off')
            continue
        _draw_edges(after, graph, result.path, result.path)
        after.set_title(f'in the order of the path ({result.method})')
        after.set(xlabel='step of key j', ylabel='step of query i')
    figure.legend(handles=[Patch(color=_EDGE, label='edge'),
                           Patch(color=_STEP, label='step of the path')],
                  loc='outside lower center', ncols=2, frameon=False)
    return figure


def _draw_edges(axes: Axes, graph: BipartiteGraph, order: np.ndarray,
                path: np.ndarray | None) -> None:
    n = max(graph.num_queries, 1)
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(order.size)
    points_per_cell = 260 / n
    style = {'linestyle': '', 'marker': 's', 'markeredgewidth': 0}
    axes.plot(rank[graph.key.numpy()], rank[graph.query.numpy()], color=_EDGE,
              markersize=max(points_per_cell, 0.7), **style)
    steps = rank[path] if path is not None else rank[:0]
    axes.plot(steps[:-1], steps[1:], color=_STEP,
              markersize=max(points_per_cell, 1.4), **style)
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect='equal')
    axes.locator_params(integer=True, min_n_ticks=1)
