"""The figure of ``python -m analysis.speed``."""

from __future__ import annotations

import statistics

from matplotlib.figure import Figure

from analysis.labels import labels_as_text
from analysis.speed.question import Speed


@labels_as_text
def draw(results: dict[str, list[Speed]]) -> Figure:
    """Draw the time of attention along each graph next to the time of full attention."""
    figure = Figure(figsize=(8, 1.4 + 0.7 * len(results)), layout='constrained')
    axes = figure.subplots()
    for y, samples in enumerate(results.values()):
        for shift, colour, name in ((-0.18, 'C0', 'seconds'), (0.18, 'C7', 'seconds_full')):
            seconds = statistics.median(getattr(sample, name) for sample in samples)
            bar = axes.barh(y + shift, 1e3 * seconds, 0.34, color=colour,
                            label={'seconds': 'along the graph',
                                   'seconds_full': 'full attention'}[name] if y == 0 else None)
            axes.bar_label(bar, fmt='%.3g', padding=3, fontsize='small')
    labels = [f'{label}\n{100 * samples[0].density:.3g} % of the pairs'
              for label, samples in results.items()]
    axes.set_yticks(range(len(results)), labels)
    axes.set(xlabel='milliseconds')
    axes.invert_yaxis()
    axes.margins(x=0.12)
    figure.legend(loc='outside lower center', ncols=2)
    return figure
