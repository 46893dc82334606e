"""The figure of ``python -m analysis.expander``."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.expander.question import Expansion
from analysis.labels import labels_as_text


@labels_as_text
def draw(results: dict[str, list[Expansion]]) -> Figure:
    """Draw the conductance of each set of the sweep cut with Cheeger's bounds, and the eigenvalues
    with their bounds."""
    figure = Figure(figsize=(9, 4.4), layout='constrained')
    sweeps, ends = figure.subplots(1, 2, width_ratios=[3, 2])
    for place, (label, samples) in enumerate(results.items()):
        _draw_sweeps(sweeps, samples, label, f'C{place}')
        _draw_ends(ends, samples, len(results) - 1 - place, f'C{place}')
    sweeps.set(title='sweep along the second eigenvector', xlabel='fraction of the tokens in S',
               ylabel='conductance of S', yscale='log', xlim=(0, 1))
    sweeps.grid(which='both')
    ends.set(title='normalised Laplacian', xlabel='eigenvalue', xlim=(-0.05, 2.05),
             yticks=range(len(results)), yticklabels=[''] * len(results),
             ylim=(-0.6, len(results) - 0.4))
    ends.grid(axis='x')
    marks = dict(zip(*ends.get_legend_handles_labels()[::-1]))  # without duplicates
    figure.legend(*sweeps.get_legend_handles_labels(), loc='outside lower left', ncols=2)
    figure.legend(marks.values(), marks.keys(), loc='outside lower right')
    return figure


def _draw_sweeps(axes: Axes, samples: list[Expansion], label: str, color: str) -> None:
    for number, sample in enumerate(samples):
        if sample.sweep_conductances is None:
            continue
        share = np.arange(1, sample.num_nodes) / sample.num_nodes
        axes.plot(share, sample.sweep_conductances, color=color,
                  linewidth=1.6 if len(samples) == 1 else 0.7,
                  marker='.' if share.size < 40 else None,
                  label=label if number == 0 else None)
    sides = np.array([(sample.cheeger_below, sample.cheeger_above) for sample in samples
                      if sample.cheeger_below is not None]).reshape(-1, 2)
    if sides.size and sides.mean(axis=0)[0] > 0:
        axes.axhspan(*sides.mean(axis=0), color=color, alpha=0.12, linewidth=0,
                     label=f"Cheeger's two sides for {label}")


def _draw_ends(axes: Axes, samples: list[Expansion], height: int, color: str) -> None:
    names = {'lambda_2': ('o', r'$\lambda_2$'), 'lambda_max': ('s', r'$\lambda_n$')}
    for name, (marker, text) in names.items():
        if height == 0:
            axes.plot([], [], marker, color='0.3', label=text)
        values = [getattr(sample, name) for sample in samples
                  if getattr(sample, name) is not None]
        axes.plot(values, [height] * len(values), marker, color=color, markersize=7)
    first = samples[0]
    if first.ramanujan_bound is None:
        return
    reach = first.ramanujan_bound / first.mean_degree
    axes.barh(height, 2 * reach, left=1 - reach, height=0.5, color=color, alpha=0.15,
              label='Ramanujan: no other leaves it')
    if first.alon_boppana_bound is not None:
        axes.plot(1 - first.alon_boppana_bound / first.mean_degree, height, '|', color='black',
                  markersize=22, label=r'Alon-Boppana: $\lambda_2$ is below')
