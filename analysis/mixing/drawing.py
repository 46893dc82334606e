"""The figure of ``python -m analysis.mixing``."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.labels import labels_as_text
from analysis.mixing.question import Mixing

_LOWEST_DRAWN = 1e-6


@labels_as_text
def draw(results: dict[str, list[Mixing]]) -> Figure:
    """Draw the distance of random walks from their limits after each step, for the plain walk and
    for the walk with restarts. Bounds are dashed."""
    figure = Figure(figsize=(10, 4.6), layout='constrained')
    plain, restart = figure.subplots(1, 2, sharey=True)
    for number, (label, samples) in enumerate(results.items()):
        for position, sample in enumerate(samples):
            style = {'color': f'C{number % 10}', 'alpha': 1 if len(samples) == 1 else 0.5,
                     'label': None if position else label}
            plain.plot(sample.distance, **style)
            plain.plot(sample.bound, '--', **style | {'label': None})
            restart.plot(sample.restart_distance, **style)
    longest = max((sample for samples in results.values() for sample in samples),
                  key=lambda sample: len(sample.restart_bound))
    restart.plot(longest.restart_bound, '--', color='0.4',
                 label=f'bound (right: {1 - longest.teleport:.3g}$^{{t+1}}$)')
    plain.set(title='Plain walk, to its stationary distribution', yscale='log',
              ylim=(_LOWEST_DRAWN, 1.5), xlabel='steps',
              ylabel='total variation from the worst start')
    restart.set(title='Walk with restarts, to the limit of its seed', xlabel='steps')
    for axes in (plain, restart):
        axes.axhline(longest.epsilon, color='0.4', linestyle=':',
                     label=rf'$\epsilon$ = {longest.epsilon:g}')
        axes.locator_params(axis='x', integer=True, min_n_ticks=1)
        axes.grid()
    handles, labels = restart.get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=2)
    return figure
