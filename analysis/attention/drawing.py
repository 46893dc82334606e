"""The figure of ``python -m analysis.attention``."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from analysis.attention.question import AttentionMatrix
from analysis.labels import labels_as_text
from graphattn.style import SHADES

_LEAST = 1e-5  # the least singular value that is drawn, relative to the largest
_CYCLE = 10  # colours of the style


@labels_as_text
def draw(results: dict[str, list[AttentionMatrix]]) -> Figure:
    """Draw the ranks and singular values of attention matrices, and their capacity over their
    direction.

    Args:
        results: Matrices by label. Matrices of one label have the same colour.
    """
    height = max(4.2, 1.2 + 0.22 * len(results))
    figure = Figure(figsize=(11, height), layout='constrained')
    ranks, values, plane = figure.subplots(1, 3, width_ratios=[1, 1.1, 1.1])
    for place, (samples, color) in enumerate(zip(results.values(), _colors(len(results)))):
        _draw_ranks(ranks, samples, place, color)
        _draw_values(values, samples, color)
        _draw_plane(plane, samples, color)
    ranks.set(title='rank', xlabel='rank', xscale='log', ylim=(len(results) - 0.5, -0.5),
              yticks=range(len(results)), yticklabels=list(results))
    marks = {'o': 'effective', 'd': 'stable'}
    for marker, name in marks.items():
        ranks.plot([], [], marker, color='0.3', label=name)
    figure.legend(*ranks.get_legend_handles_labels(), loc='outside lower left', ncols=2)
    values.set(title='singular values of A', xlabel='index', ylabel=r'$\sigma$', xscale='log',
               yscale='log')
    plane.set(title='capacity and direction', xlabel='asymmetry G (0: symmetric)',
              ylabel=r'bounds of Cheeger number $\phi$', yscale='log')
    ranks.set_xlim(0.8, 1.2 * max(sample.num_queries for samples in results.values()
                                  for sample in samples))
    for axes in (ranks, values, plane):
        axes.grid()
        axes.xaxis.set_minor_formatter(NullFormatter())  # its labels would overlap
        if not axes.has_data():
            axes.set(xlim=(0.1, 1), ylim=(0.1, 1))  # a logarithmic axis needs positive limits
    return figure


def _colors(count: int) -> list[object]:
    if count <= _CYCLE:
        return [f'C{number}' for number in range(count)]
    return list(colormaps[SHADES](np.linspace(0.35, 1, count)))


def _draw_ranks(axes: Axes, samples: list[AttentionMatrix], place: int, color: object) -> None:
    for name, marker in (('effective_rank', 'o'), ('stable_rank', 'd')):
        ranks = [value for sample in samples if (value := getattr(sample, name))]
        axes.plot(ranks, [place] * len(ranks), marker, color=color, markersize=5, alpha=0.7)


def _draw_values(axes: Axes, samples: list[AttentionMatrix], color: object) -> None:
    for sample in samples:
        shown = sample.singular_values
        shown = shown[shown > _LEAST * shown.max()]
        if shown.size:
            axes.plot(np.arange(1, len(shown) + 1), shown, '.-' if len(shown) < 40 else '-',
                      color=color, linewidth=1.4 if len(samples) == 1 else 0.6)


def _draw_plane(axes: Axes, samples: list[AttentionMatrix], color: object) -> None:
    """Draw the mean bounds of the Cheeger number over the mean asymmetry, as one vertical line.
    Samples whose lower bound is 0 are left out."""
    shown = [(sample.asymmetry, sample.phi_below, sample.phi_above) for sample in samples
             if sample.asymmetry is not None and sample.phi_below]
    if shown:
        asymmetry, below, above = np.mean(shown, axis=0)
        axes.plot([asymmetry] * 2, [below, above], '_-', color=color, linewidth=1.6, markersize=8)
