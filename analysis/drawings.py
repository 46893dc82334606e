"""Figures of the questions, one function each."""

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from textwrap import fill, shorten

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from analysis.diffusion import heat_response, ppr_response
from analysis.result import Result, Results
from graphattn import BipartiteGraph, draw
from graphattn.style import SHADES

_LEAST = 1e-5  # the least singular value that is drawn, relative to the largest
_CYCLE = 10  # colours of the style
_FEW_VALUES = 200  # eigenvalues
_LOWEST_DRAWN = 1e-6
_EDGE, _STEP = 'C5', 'C1'
MEASURES = {'density_of_head': 'density', 'hops_of_head': 'hops', 'gap_of_head': 'gap',
            'sigma_of_head': 'second singular value'}
TIMES = {'halo_ms': 'halo', 'all_keys_ms': 'all keys', 'ring_ms': 'ring, all pairs',
         'ulysses_ms': 'Ulysses, all pairs'}
STYLES = '-', '--', ':', '-.'


def as_text(label: str) -> str:
    """Return ``label`` with every ``$`` escaped: matplotlib reads the text between two as
    mathematics."""
    return label.replace('$', r'\$')


def name_tokens(figure: Figure, names: Sequence[str] | None) -> None:
    """Label the keys and queries of the masks in a figure with the names of the tokens."""
    def name(place: float, _: int) -> str:
        is_token = place == int(place) and 0 <= place < len(names)
        return as_text(shorten(names[int(place)], 16, placeholder='...')) if is_token else ''

    for axes in figure.axes if names else ():
        for axis in axes.xaxis, axes.yaxis:
            if axis.get_label_text() in ('key', 'key j', 'query', 'query i'):
                axis.set_major_formatter(name)
                axis.set_tick_params(rotation=90 if axis is axes.xaxis else 0)


def _labels_as_text(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Return the drawing function ``draw`` with escaped labels of graphs."""
    @functools.wraps(draw)
    def drawn(*arguments: object) -> Figure:
        return draw(*({as_text(label): value for label, value in given.items()}
                      if isinstance(given, dict) else given for given in arguments))
    return drawn


def _styled(results: Results) -> Iterator[tuple[Result, dict[str, object]]]:
    for place, (label, samples) in enumerate(results.items()):
        for number, sample in enumerate(samples):
            yield sample, {'color': f'C{place % 10}', 'label': None if number else label,
                           'linewidth': 1.6 if len(samples) == 1 else 0.7}


@_labels_as_text
def draw_spectrum(results: Results) -> Figure:
    """Draw the sorted eigenvalues or singular values of graphs, as in Diffuser's Figure S.8."""
    figure = Figure(figsize=(9, 4), layout='constrained')
    curves, counts = figure.subplots(1, 2)
    pooled = {label: np.concatenate([sample.values for sample in samples])
              for label, samples in results.items()}
    top = max(values.max() for values in pooled.values())
    bins = np.linspace(0, max(top, 1e-12) * 1.02, 61)
    for sample, style in _styled(results):
        steps = np.diff(sample.index)
        is_curve = steps.size > 0 and bool((steps == 1).all())
        curves.plot(sample.index, sample.values, '-' if is_curve else 'o', markersize=4, **style)
    for place, values in enumerate(pooled.values()):
        counts.hist(values, bins, weights=np.full(values.size, 1 / values.size), histtype='step',
                    color=f'C{place}', linewidth=1.4)
    matrices = ', '.join(dict.fromkeys(sample.matrix for sample, _ in _styled(results)))
    kind = 'singular value' if matrices.startswith('D_q') else 'eigenvalue'
    curves.set(title=matrices, xlabel='index, in sorted order', ylabel=kind)
    curves.locator_params(axis='x', integer=True, min_n_ticks=1)
    counts.set(title='distribution', xlabel=kind, ylabel=f'fraction of the {kind}s shown')
    most = max(map(np.size, pooled.values()))
    if most > _FEW_VALUES:  # whose fractions are far apart
        counts.set(yscale='log', ylim=(0.5 / most, 1.5))
    for axes in (curves, counts):
        axes.grid()
    figure.legend(*curves.get_legend_handles_labels(), loc='outside lower center',
                  ncols=min(len(results), 4))
    return figure


@_labels_as_text
def draw_attention(results: Results) -> Figure:
    """Draw the ranks and singular values of attention matrices, and their capacity over their
    direction."""
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


def _draw_ranks(axes: Axes, samples: list[Result], place: int, color: object) -> None:
    for name, marker in (('effective_rank', 'o'), ('stable_rank', 'd')):
        ranks = [value for sample in samples if (value := getattr(sample, name))]
        axes.plot(ranks, [place] * len(ranks), marker, color=color, markersize=5, alpha=0.7)


def _draw_values(axes: Axes, samples: list[Result], color: object) -> None:
    for sample in samples:
        shown = sample.singular_values
        shown = shown[shown > _LEAST * shown.max()]
        if shown.size:
            axes.plot(np.arange(1, len(shown) + 1), shown, '.-' if len(shown) < 40 else '-',
                      color=color, linewidth=1.4 if len(samples) == 1 else 0.6)


def _draw_plane(axes: Axes, samples: list[Result], color: object) -> None:
    shown = [(sample.asymmetry, sample.phi_below, sample.phi_above) for sample in samples
             if sample.asymmetry is not None and sample.phi_below]
    if shown:
        asymmetry, below, above = np.mean(shown, axis=0)
        axes.plot([asymmetry] * 2, [below, above], '_-', color=color, linewidth=1.6, markersize=8)


@_labels_as_text
def draw_expander(results: Results) -> Figure:
    """Draw the conductance of each set of the sweep cut with Cheeger's bounds, and the eigenvalues
    with their bounds."""
    height = 0.5 + 0.3 * min(len(results), 8)  # of a panel with a line for each graph
    figure = Figure(figsize=(9, 4 + height), layout='constrained')
    sweeps, ends = figure.subplots(2, 1, height_ratios=[3.2, height])
    for place, (label, samples) in enumerate(results.items()):
        _draw_sweeps(sweeps, samples, label, f'C{place}')
        _draw_sides(sweeps, samples, 1 + 0.02 * (place + 1), f'C{place}')
        _draw_ends(ends, samples, len(results) - 1 - place, f'C{place}')
    sweeps.set(title='sweep along the second eigenvector', xlabel='fraction of the tokens in S',
               ylabel='conductance of S', yscale='log', xlim=(0, 1 + 0.02 * (len(results) + 1)),
               xticks=np.linspace(0, 1, 6))
    sweeps.plot([], [], '|', color='0.3', markersize=14, markeredgewidth=3,
                label="the least conductance of all S, within Cheeger's two sides")
    for axis in sweeps.yaxis.set_major_formatter, sweeps.yaxis.set_minor_formatter:
        axis(_as_number)
    sweeps.grid(which='both')
    ends.set(title='normalised Laplacian', xlabel='eigenvalue', xlim=(-0.05, 2.05),
             yticks=[], ylim=(-0.6, len(results) - 0.4))
    ends.grid(axis='x')
    marks = dict(zip(*ends.get_legend_handles_labels()[::-1]))  # without duplicates
    figure.legend(*sweeps.get_legend_handles_labels(), loc='outside lower left', ncols=2)
    figure.legend(marks.values(), marks.keys(), loc='outside lower right')
    return figure


def _draw_sweeps(axes: Axes, samples: list[Result], label: str, color: str) -> None:
    for number, sample in enumerate(samples):
        if sample.sweep_conductances is None:
            continue
        share = np.arange(1, sample.num_nodes) / sample.num_nodes
        axes.plot(share, sample.sweep_conductances, color=color,
                  linewidth=1.6 if len(samples) == 1 else 0.7,
                  marker='.' if share.size < 40 else None,
                  label=label if number == 0 else None)


def _draw_sides(axes: Axes, samples: list[Result], place: float, color: str) -> None:
    sides = np.array([(sample.cheeger_below, sample.cheeger_above) for sample in samples
                      if sample.cheeger_below is not None]).reshape(-1, 2)
    if sides.size and sides.mean(axis=0)[0] > 0:
        axes.vlines(place, *sides.mean(axis=0), color=color, linewidth=4)


def _as_number(value: float, _: int) -> str:
    leading = f'{value:.0e}'[0]
    return f'{value:g}' if leading in '125' else ''


def _draw_ends(axes: Axes, samples: list[Result], height: int, color: str) -> None:
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


@_labels_as_text
def draw_mixing(results: Results) -> Figure:
    """Draw the distance of random walks from their limits after each step, for the plain walk and
    for the walk with restarts."""
    figure = Figure(figsize=(10, 4.6), layout='constrained')
    plain, restart = figure.subplots(1, 2, sharey=True)
    for sample, style in _styled(results):
        plain.plot(sample.distance, **style)
        plain.plot(sample.bound, '--', **style | {'label': None})
        restart.plot(sample.restart_distance, **style)
    longest = max((sample for sample, _ in _styled(results)),
                  key=lambda sample: len(sample.restart_bound))
    restart.plot(longest.restart_bound, '--', color='0.4',
                 label=f'bound (right: {1 - longest.teleport:.3g}$^{{t+1}}$)')
    for axes in (plain, restart):
        seen = [np.flatnonzero(np.asarray(line.get_ydata()) >= _LOWEST_DRAWN)
                for line in axes.lines]
        axes.set_xlim(0, 1 + max(steps.max(initial=1) for steps in seen))
    plain.set(title='Plain walk, to its stationary distribution', yscale='log',
              ylim=(_LOWEST_DRAWN, 1.5), xlabel='steps',
              ylabel='total variation from the worst start')
    restart.set(title='Walk with restarts, to the limit of its seed', xlabel='steps')
    for axes in (plain, restart):
        axes.axhline(longest.epsilon, color='0.4', linestyle=':',
                     label=rf'$\epsilon$ = {longest.epsilon:g}')
        axes.locator_params(axis='x', integer=True, min_n_ticks=1)
        axes.grid()
    figure.legend(*restart.get_legend_handles_labels(), loc='outside lower center', ncols=2)
    return figure


@_labels_as_text
def draw_diffusion(results: Results) -> Figure:
    """Draw four panels: how diffusion changes eigenvalues, receptive fields by hop, the distance to
    infinitely many hops, and eigenvalues after diffusion."""
    samples = [sample for sample, _ in _styled(results)]
    has_spectra = samples[0].distance.size > 0
    figure = Figure(figsize=(10, 8 if has_spectra else 4.4), layout='constrained')
    axes = figure.subplots(2 if has_spectra else 1, 2).ravel()
    _draw_responses(axes[0], samples[0])
    for sample, style in _styled(results):
        hop = np.arange(len(sample.field_mean))
        axes[1].plot(hop, sample.field_mean, '.-', **style)
        axes[1].fill_between(hop, sample.field_min, sample.field_max, color=style['color'],
                             alpha=0.15)
        if has_spectra:
            axes[2].plot(sample.distance, '.-', **style)
            axes[3].plot(sample.response.real, sample.response.imag, 'o', markersize=7,
                         fillstyle='none', color=style['color'], alpha=0.4)
            axes[3].plot(sample.eigenvalue_after.real, sample.eigenvalue_after.imag, '.',
                         markersize=3, color=style['color'])
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
    figure.legend(*axes[2 if has_spectra else 1].get_legend_handles_labels(),
                  loc='outside lower center', ncols=2)
    return figure


def _draw_responses(axes: Axes, sample: Result) -> None:
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


@_labels_as_text
def draw_hamiltonian(results: Results, graphs: dict[str, list[BipartiteGraph]]) -> Figure:
    """Draw the edges of the first graph of each label, once in token order and once in the order of
    the path."""
    figure = Figure(figsize=(8.2, 4.6 * len(graphs)), layout='constrained')
    for (before, after), label in zip(figure.subplots(len(graphs), 2, squeeze=False), graphs):
        graph, result = graphs[label][0], results[label][0]
        graph = graph | graph.transpose() if result.symmetrization == 'union' else graph
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


@_labels_as_text
def draw_universality(graphs: dict[str, BipartiteGraph], result: Result) -> Figure:
    """Draw the graphs that layers apply in turn, and the fraction of pairs of tokens that are
    reached after each layer."""
    columns = min(len(graphs) + 1, 4)
    rows = math.ceil((len(graphs) + 1) / columns)
    figure = Figure(figsize=(2.3 * columns, 2.7 * rows), layout='constrained')
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (label, graph) in zip(panels, graphs.items()):
        draw.mask(graph, axes=axes)
        axes.set_title(fill(label, 28), fontsize='small')
    _draw_reach(panels[len(graphs)], result)
    for axes in panels[len(graphs) + 1:]:
        axes.axis('off')
    return figure


def _draw_reach(axes: Axes, result: Result) -> None:
    layer = np.arange(1, result.reach.size + 1)
    axes.plot(layer, 100 * result.reach, marker='o' if layer.size < 40 else None)
    axes.axhline(100, color='0.7', linewidth=1, zorder=0)
    title = f's = {result.layers}' if result.layers else 'never all'
    axes.set_title(f'pairs reached: {title}', fontsize='small')
    axes.set(xlabel='layers', ylabel='pairs reached [%]', ylim=(0, 105))
    axes.locator_params(axis='x', integer=True, min_n_ticks=1)
    axes.margins(x=0.1)
    axes.set_box_aspect(1)


@_labels_as_text
def draw_certificate(results: Results) -> Figure:
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


@_labels_as_text
def draw_communication(results: Results) -> Figure:
    """Draw the bytes that processes exchange in a training step, and the computed time of the step,
    against the number of processes."""
    figure = Figure(figsize=(10, 4.8), layout='constrained')
    left, right = figure.subplots(1, 2)
    for sample, style in _styled(results):
        left.plot(sample.processes, sample.halo_mib, '.-', **style)
        for name, line in zip(TIMES, STYLES):
            right.plot(sample.processes, getattr(sample, name), line, marker='.',
                       color=style['color'])
    left.plot(sample.processes, sample.all_keys_mib, '--', color='0.4', label='all keys')
    for name, style in zip(TIMES.values(), STYLES):
        right.plot([], [], style, color='0.4', label=name)
    left.set(title='Sent by a process', ylabel='MiB in a training step of one layer')
    right.set(title='Time, computed from the given rates', ylabel='ms')
    for axes in (left, right):
        axes.set(xscale='log', yscale='log', xlabel='processes')
        axes.set_xticks(sample.processes, [f'{count:,}' for count in sample.processes])
        axes.minorticks_off()
        axes.grid()
        axes.legend()
    return figure


@_labels_as_text
def draw_speed(results: Results) -> Figure:
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
