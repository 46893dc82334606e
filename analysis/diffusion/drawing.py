"""The figure of ``python -m analysis.diffusion``."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.diffusion.question import Diffusion
from analysis.diffusion.responses import heat_response, ppr_response
from analysis.labels import labels_as_text
from graphattn.style import SHADES


@labels_as_text
def draw(results: dict[str, list[Diffusion]]) -> Figure:
    """Draw four panels: how diffusion changes eigenvalues, receptive fields by hop, the distance to
    infinitely many hops, and eigenvalues after diffusion."""
    samples = [sample for samples in results.values() for sample in samples]
    has_spectra = samples[0].distance.size > 0
    figure = Figure(figsize=(10, 8 if has_spectra else 4.4), layout='constrained')
    axes = figure.subplots(2 if has_spectra else 1, 2).ravel()
    _draw_responses(axes[0], samples[0])
    for number, (label, of_label) in enumerate(results.items()):
        for position, sample in enumerate(of_label):
            style = {'color': f'C{number % 10}', 'label': None if position else label}
            _draw_field(axes[1], sample, **style)
            if has_spectra:
                axes[2].plot(sample.distance, '.-', **style)
                _draw_eigenvalues(axes[3], sample, **style)
    axes[1].set(title='Receptive field (band: least to most)', xlabel='hops',
                ylabel='keys that reach a query')
    if has_spectra:
        widest = max(samples, key=lambda sample: sample.hops)
        axes[2].plot(widest.distance_bound, '--', color='0.4',
                     label='bound $2(1-a)^{K+1}$')
        axes[2].set(title='Distance to infinitely many hops', yscale='log', xlabel='hops K',
                    ylabel='largest absolute row sum')
        axes[2].set_ylim(bottom=min(0.1, axes[2].get_ylim()[0]), top=2.5)
        axes[3].set(title=f'Eigenvalues after {widest.hops} hops (o: predicted)',
                    xlabel=r'Re $\tilde\mu$', ylabel=r'Im $\tilde\mu$')
        axes[3].axhline(0, color='0.8', linewidth=0.8, zorder=0)
    for panel in axes[1:3]:
        panel.locator_params(axis='x', integer=True, min_n_ticks=1)
    for panel in axes[1:]:
        panel.grid()
    handles, labels = axes[2 if has_spectra else 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=2)
    return figure


def _draw_responses(axes: Axes, sample: Diffusion) -> None:
    laplacian = np.linspace(0, 2, 201)
    drawn_hops = sorted({1, 2, 3, 5, sample.hops})
    shades = colormaps[SHADES](np.linspace(0.4, 0.9, len(drawn_hops)))
    for hops, shade in zip(drawn_hops, shades):
        axes.plot(laplacian, 1 - ppr_response(1 - laplacian, sample.teleport, hops), color=shade,
                  label=f'K = {hops}')
    axes.plot(laplacian, 1 - ppr_response(1 - laplacian, sample.teleport), color='black',
              label=r'K = $\infty$')
    axes.plot(laplacian, 1 - heat_response(1 - laplacian, sample.time), '--', color='C1',
              label=f'heat, t = {sample.time:g}')
    axes.set(title=f'Response of the Laplacian, a = {sample.teleport:g}',
             xlabel=r'eigenvalue $\lambda$ of the graph',
             ylabel=r'$\tilde\lambda$ after diffusion')
    axes.legend(ncols=2)
    axes.grid()


def _draw_field(axes: Axes, sample: Diffusion, **style) -> None:
    hop = np.arange(len(sample.field_mean))
    axes.plot(hop, sample.field_mean, '.-', **style)
    axes.fill_between(hop, sample.field_min, sample.field_max, color=style['color'], alpha=0.15)


def _draw_eigenvalues(axes: Axes, sample: Diffusion, **style) -> None:
    axes.plot(sample.response.real, sample.response.imag, 'o', markersize=7, fillstyle='none',
              color=style['color'], alpha=0.4)
    axes.plot(sample.eigenvalue_after.real, sample.eigenvalue_after.imag, '.', markersize=3,
              color=style['color'])
