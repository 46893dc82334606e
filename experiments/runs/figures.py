"""Figures of a training run."""

import math
from itertools import chain, cycle
from pathlib import Path
from statistics import mean
from textwrap import fill

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from graphattn import BipartiteGraph
from graphattn.graphs import PairMask
from graphattn.style import COLOURS
from graphattn.utils.files import write_whole

CURVES_PER_ROW, MASKS_PER_ROW = 3, 4
MIN_SHOWN = 0.1  # least density of a shown head, as a fraction of the densest head's
MIN_SPAN = 0.2  # least height of a panel, as a fraction of its values
HEADS_PER_COLUMN = 16  # in a legend
STYLES = '-', '--', ':', '-.'


def report_figure(figure: Figure, name: str, out: Path) -> None:
    """Write a figure to ``out/name.png``, and print its path."""
    write_whole(out / f'{name}.png', figure.savefig)
    print(f'drawn in {out / name}.png')


def _grid(count: int, per_row: int, width: float, height: float,
          beside: float = 0.) -> tuple[Figure, np.ndarray]:
    """Return a figure with rows of ``count`` panels, and its axes."""
    num_rows = max(1, -(-count // per_row))
    figure = Figure(figsize=(width, height * num_rows + beside), layout='constrained')
    panels = figure.subplots(num_rows, per_row, squeeze=False).flatten()
    for axes in panels[count:]:
        axes.remove()
    return figure, panels[:count]


def training_curves(history: list[dict[str, float]], tested: int) -> Figure:
    """Plot all metrics by epoch, and mark the epoch ``tested``."""
    logged = dict.fromkeys(name for row in history for name in row)
    stages = {name.split('/')[0] for name in logged}
    detailed = 'val' if 'val' in stages else 'train'
    metrics: dict[str, list[str]] = {}
    for name in logged:
        stage, *metric_and_place = name.split('/')
        if metric_and_place:
            curves = metrics.setdefault(metric_and_place[0], [])
            if stage == detailed or len(metric_and_place) == 1:
                curves.append(name)
    columns = -(-len(metrics.get('density', ())) // HEADS_PER_COLUMN)
    figure, panels = _grid(len(metrics), CURVES_PER_ROW, 13 + columns, 3.8)
    for axes, (metric, names) in zip(panels, metrics.items()):
        for number, name in enumerate(names):
            stage, _, *place = name.replace('/all_layers/', '/').split('/')
            rows = [row for row in history if name in row]  # some epochs have no evaluation
            axes.plot([row['epoch'] for row in rows], [row[name] for row in rows],
                      color=COLOURS[number % len(COLOURS)],
                      linestyle=STYLES[number // len(COLOURS) % len(STYLES)],
                      marker='.',  # makes a single epoch visible
                      label=' '.join(place) or {'train': 'training', 'val': 'development'}[stage])
        axes.axvline(tested, color='grey', linestyle='--', linewidth=1, label='tested')
        of_epochs(axes, metric, history[-1]['epoch'])
        if metric == 'density':  # densities have too many lines for a legend inside
            axes.legend(loc='center left', bbox_to_anchor=(1, 0.5), ncols=max(1, columns))
        else:
            axes.legend()
    return figure


def compared_curves(runs: dict[str, list[list[dict[str, float]]]],
                    tested: dict[str, list[int | None]]) -> Figure:
    """Plot the metrics of runs and their density by epoch, several seeds as their mean and range,
    with a ring at the ``tested`` epoch of each."""
    rows = [row for histories in runs.values() for history in histories for row in history]
    stage = 'val/' if any(name.startswith('val/') for row in rows for name in row) else 'train/'
    for row in rows:
        density = [row[name] for name in row if name.startswith(f'{stage}density/')]
        row |= {f'{stage}density': mean(density)} if density else {}
    names = list(dict.fromkeys(name for row in rows for name in row
                               if name.startswith(stage) and '/density/' not in name))
    figure, panels = _grid(len(names), CURVES_PER_ROW, 13, 3.8)
    for axes, name in zip(panels, names):
        for colour, style, (run, histories) in zip(cycle(COLOURS), cycle(STYLES), runs.items()):
            values = {}
            for row in chain.from_iterable(histories):
                if name in row:
                    values.setdefault(row['epoch'], []).append(row[name])
            epochs = sorted(values)
            axes.plot(epochs, [mean(values[epoch]) for epoch in epochs], style, color=colour,
                      marker='.', label=run)
            axes.fill_between(epochs, [min(values[epoch]) for epoch in epochs],
                              [max(values[epoch]) for epoch in epochs], color=colour, alpha=0.2,
                              linewidth=0)
            rings = [(row['epoch'], row[name]) for epoch, history in zip(tested[run], histories)
                     for row in history if row['epoch'] == epoch and name in row]
            axes.plot(*zip(*rings or [(math.nan, math.nan)]), 'o', color=colour, markersize=9,
                      fillstyle='none')
        axes.plot([], [], 'o', color='grey', markersize=9, fillstyle='none', label='tested')
        of_epochs(axes, name.removeprefix(stage), max(row['epoch'] for row in rows))
    if names:
        figure.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center', ncols=4)
    return figure


def of_epochs(axes: Axes, metric: str, last: int) -> None:
    axes.set(title=metric.replace('_', ' '), xlabel='epoch', xlim=(0.5, last + 0.5))
    axes.grid()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    low, high = axes.get_ylim()
    missing = max(0, MIN_SPAN * max(abs(low), abs(high)) - (high - low))
    low, high = low - missing / 2, high + missing / 2  # otherwise noise would look like a cliff
    if 0 <= axes.dataLim.y0 and axes.dataLim.y1 <= 1:  # as shares, which have no ticks beyond
        low = max(low, -0.04 * high)
        high = min(high, 1 + 0.04 * (1 - low))
    axes.set_ylim(low, high)


def received_attention(
    model: nn.Module, images: Tensor, titles: list[str], shape: tuple[int, int], draws: int = 32,
) -> Figure:
    """Draw the fraction of queries that attend to each pixel beside the image, for every head (SBM,
    Fig. 7); heads far below the densest head are only named."""
    maps, names = [], []
    for layer, received in enumerate(received_shares(model, images, draws)):
        maps.extend(received)
        heads = [f'head {h}' for h in range(len(received))] if len(received) > 1 else ['all heads']
        names.extend(f'layer {layer}\n{head}' for head in heads)

    density = [float(received.nanmean()) for received in maps]
    blank = [name for name, kept in zip(names, density) if kept < MIN_SHOWN * max(density)]
    maps, names = zip(*((received, name) for received, name in zip(maps, names)
                        if name not in blank))
    figure = Figure(figsize=(1.5 * (1 + len(maps)) + 1, 1.75 * len(images) + 0.6),
                    layout='constrained')
    rows = figure.subplots(len(images), 1 + len(maps), squeeze=False)
    highest = max(float(received.nan_to_num().max()) for received in maps)
    for i, row in enumerate(rows):
        row[0].imshow(images[i].view(shape).cpu().numpy(), cmap='gray')
        row[0].set_title(titles[i])
        for axes, received, name in zip(row[1:], maps, names):
            picture = axes.imshow(received[i].view(shape).cpu().numpy(), vmin=0, vmax=highest)
            own_density = f'{float(received[i].nanmean()):.1%}'
            axes.set_title(f'{name}\n{own_density}' if i == 0 else own_density)
    for axes in rows.flat:
        axes.set(xticks=[], yticks=[])
    if blank:
        shown = ', '.join(name.replace('\n', ' ') for name in blank)
        figure.supxlabel('not drawn, with less than a tenth of the densest head\'s pairs:\n'
                         + fill(shown, 14 * (1 + len(maps))), fontsize='medium')
    figure.colorbar(picture, ax=rows, shrink=0.6,
                    label='fraction of the queries that attend to the pixel')
    return figure


@torch.no_grad()
def received_shares(model: nn.Module, images: Tensor, draws: int = 1) -> list[Tensor]:
    """Return the fraction of an image's queries that attend to each pixel, for every head."""
    was_training = model.training
    model.eval()
    images = images.to(next(model.parameters()).device)
    num_images, num_pixels = images.shape
    ptr = torch.arange(num_images * draws + 1, device=images.device) * num_pixels
    tokens = images.repeat_interleave(draws, dim=0).flatten()
    graphs = model(tokens, ptr, return_graphs=True)[1]
    model.train(was_training)

    padding = model.encoder.padding_token
    is_token = torch.ones_like(tokens, dtype=torch.bool) if padding is None else tokens != padding
    num_queries = is_token.view(num_images, draws, num_pixels)[:, 0].sum(dim=1, keepdim=True)
    lengths = is_token.view(-1, num_pixels).sum(dim=1).tolist()
    shares = []
    for graph in graphs:
        received = _received(graph, lengths)
        of_pixels = received.new_full((len(received), len(tokens)), math.nan)
        of_pixels[:, is_token] = received
        mean = of_pixels.view(-1, num_images, draws, num_pixels).mean(dim=2)
        shares.append(mean / num_queries)
    return shares


def _received(graph: BipartiteGraph | PairMask, lengths: list[int]) -> Tensor:
    """Return how many queries, or their weight, each token gets, ``[heads, num_tokens]``."""
    if isinstance(graph, PairMask):
        return torch.cat([graph.dense(length).sum(dim=1) for length in lengths], dim=1).float()
    return graph.out_degree().view(-1, sum(lengths)).float()


def mask_probabilities(probability: Tensor) -> Figure:
    """Draw for each head the probability that a query attends to a key (SparseBERT, Fig. 2, 5,
    6)."""
    heads = probability.detach().float().cpu().numpy()
    figure, panels = _grid(len(heads), MASKS_PER_ROW, 2.6 * MASKS_PER_ROW, 2.8, beside=0.4)
    for head, (axes, values) in enumerate(zip(panels, heads)):
        picture = axes.imshow(values, vmin=0, vmax=1)
        axes.set_title(f'head {head}\n{values.mean():.1%}')
        axes.set(xticks=[], yticks=[])
    figure.supxlabel('key')
    figure.supylabel('query')
    figure.colorbar(picture, ax=panels.tolist(), shrink=0.7, label='P')
    return figure
