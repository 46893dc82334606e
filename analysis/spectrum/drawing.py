"""The figure of ``python -m analysis.spectrum``."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from analysis.labels import labels_as_text
from analysis.spectrum.question import Spectrum


@labels_as_text
def draw(results: dict[str, list[Spectrum]]) -> Figure:
    """Draw the sorted eigenvalues or singular values of graphs, as in Diffuser's Fig. S.8, and
    their distribution."""
    figure = Figure(figsize=(9, 4), layout='constrained')
    curves, counts = figure.subplots(1, 2)
    pooled = {label: np.concatenate([sample.values for sample in samples])
              for label, samples in results.items()}
    top = max(values.max() for values in pooled.values())
    bins = np.linspace(0, max(top, 1e-12) * 1.02, 61)
    for place, (label, samples) in enumerate(results.items()):
        color = f'C{place}'
        for number, sample in enumerate(samples):
            steps = np.diff(sample.index)
            is_curve = steps.size > 0 and bool((steps == 1).all())
            curves.plot(sample.index, sample.values, '-' if is_curve else 'o', color=color,
                        markersize=4, linewidth=1.6 if len(samples) == 1 else 0.7,
                        label=label if number == 0 else None)
        share = np.full(pooled[label].size, 1 / pooled[label].size)
        counts.hist(pooled[label], bins, weights=share, histtype='step', color=color,
                    linewidth=1.4, label=label)
    matrices = ', '.join(dict.fromkeys(sample.matrix for samples in results.values()
                                       for sample in samples))
    kind = 'singular value' if matrices.startswith('D_q') else 'eigenvalue'
    curves.set(title=matrices, xlabel='index, in sorted order', ylabel=kind)
    curves.locator_params(axis='x', integer=True, min_n_ticks=1)
    counts.set(title='distribution', xlabel=kind, ylabel=f'fraction of the {kind}s shown',
               yscale='log', ylim=(0.5 / max(map(np.size, pooled.values())), 1.5))
    for axes in (curves, counts):
        axes.grid()
    figure.legend(*curves.get_legend_handles_labels(), loc='outside lower center',
                  ncols=min(len(results), 4))
    return figure
