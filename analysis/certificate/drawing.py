"""The figure of ``python -m analysis.certificate``."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from analysis.certificate.question import Certificate
from analysis.labels import labels_as_text

MEASURES = {'density_of_head': 'density', 'hops_of_head': 'hops', 'gap_of_head': 'gap',
            'sigma_of_head': 'second singular value'}


@labels_as_text
def draw(results: dict[str, list[Certificate]]) -> Figure:
    """Draw the measures of each head's graph, head by head, with a curve for each model."""
    figure = Figure(figsize=(10, 5.6), layout='constrained')
    for axes, (name, title) in zip(figure.subplots(2, 2).flatten(), MEASURES.items()):
        for label, samples in results.items():
            values = getattr(samples[0], name)
            axes.plot(np.arange(len(values)), values, '.-', label=label)
            of_layer = max(1, len(values) // samples[0].num_layers)
            axes.set_xticks(np.arange(0, len(values) + 1, of_layer))
        axes.set(title=title, xlabel='heads; each line begins a layer')
        axes.grid(axis='x')
    axes.legend()
    return figure
