"""The report of ``sparsify``: a page about a model whose heads attend along graphs."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from analysis.certificate import certificate, graphs_of_heads
from analysis.report import Section, page
from analysis.result import Result
from experiments.surgery.losses import logits_of
from graphattn.hugging_face import Fit
from graphattn.style import in_style
from graphattn.utils.files import write_whole

CERTIFIED = 512  # tokens, at most
BY_CONTENT = ' The graphs of heads with clusters are those of one sequence.'


@dataclass(frozen=True)
class Losses(Result):
    """Losses before attention is replaced, right after it and after training, and the density."""

    dense: float
    cut: float
    adapted: float
    rise: float  #: Of the adapted loss over the dense one.
    density: float
    share: float  #: Of the dense model's weight that the edges hold.


@dataclass(frozen=True)
class Lengths(Result):
    """The time of a forward pass at one length, of the dense model and of the sparse model."""

    length: int
    dense_ms: float
    sparse_ms: float
    times: float


@dataclass(frozen=True)
class Head(Result):
    """The pattern of one head of the sparse model, and measures of it."""

    head: str  #: Layer and number.
    pattern: str
    share: float  #: Of the dense model's weight.
    error: float  #: Of its output.
    density: float
    cost: float | None  #: Rise of the loss over the error.
    hops: float
    gap: float
    sigma: float


@torch.no_grad()
def costs_of_lengths(dense: nn.Module, sparse: nn.Module, longest: int,
                     rounds: int = 3) -> list[dict[str, float]]:
    """Return rows with the least milliseconds of a forward pass of both models by length."""
    lengths = [length for length in (128, 512, 1024, 4096, 16384) if length < longest] + [longest]
    rows = []
    for length in lengths:
        tokens = torch.randint(dense.config.vocab_size, (1, length),
                               generator=torch.Generator().manual_seed(0))
        times: dict[str, list[float]] = {'dense': [], 'sparse': []}
        for round_ in range(rounds + 1):
            for name, model in (('dense', dense), ('sparse', sparse)):
                start = time.perf_counter()
                logits_of(model, tokens)
                if round_:  # the first one warms up
                    times[name].append(1e3 * (time.perf_counter() - start))
        rows.append({'length': length,
                     **{f'{name}_ms': min(values) for name, values in times.items()}})
    return rows


def write_report(path: Path, model: nn.Module, chosen: Fit,
                 costs: np.ndarray | None, results: dict[str, Any], tokens: Tensor) -> None:
    length = min(len(tokens), CERTIFIED)
    layers = graphs_of_heads(model, length, tokens)
    proven = certificate([graphs * int(count) if len(graphs) == 1 else graphs
                          for graphs, count in zip(layers, np.bincount(chosen.layer))])
    heads = [Head(f'{chosen.layer[row]}.{head["head"]}', head['pattern'], head['share'],
                  head['error'], head['density'], None if costs is None else float(costs[row]),
                  float(proven.hops_of_head[row]), float(proven.gap_of_head[row]),
                  float(proven.sigma_of_head[row]))
             for row, head in enumerate(chosen.as_table())]
    losses = Losses(**{name: results[name] for name in ('dense', 'cut', 'adapted', 'density',
                                                        'share')},
                    rise=results['adapted'] / results['dense'] - 1)
    lengths = [Lengths(**row, times=row['dense_ms'] / row['sparse_ms'])
               for row in results['lengths']]
    with in_style():
        sections = [
            Section('Loss', 'On sequences that were not trained on: of the dense model, right '
                            'after the cut, and after training along the graphs.',
                    {'model': [losses]}),
            Section('Time', 'Forward pass of one sequence on this machine, dense attention by '
                            'SDPA.', {'length': lengths}),
            Section('Certificate', f'What the graphs can do at {length} tokens, whatever the '
                                   f'weights are.{BY_CONTENT if chosen.clusters else ""}',
                    {'model': [proven]}),
            Section('Heads', 'The pattern of each head, the share of the dense weight that it '
                             'keeps, the squared error of its output relative to the square '
                             'of the output, and measures of its graph.',
                    {'heads': heads},
                    _draw(chosen, costs))]
        text = page('Sparse attention of a dense model', sections)
    write_whole(path, lambda temporary: temporary.write_text(text, encoding='utf-8'))


def _draw(chosen: Fit, costs: np.ndarray | None) -> Figure:
    """Draw the density, the error and the cost of each head as images with a row for each layer."""
    panels = {'density, %': 100 * chosen.density, 'squared error, %': 100 * chosen.error}
    if costs is not None:
        panels['cost'] = costs
    num_heads = int(np.bincount(chosen.layer).max())
    figure = Figure(figsize=(3.9 * len(panels), 0.6 + 0.35 * len(chosen.layers)),
                    layout='constrained')
    for axes, (title, values) in zip(figure.subplots(1, len(panels), squeeze=False)[0],
                                     panels.items()):
        grid = np.full((len(chosen.layers), num_heads), np.nan)
        head = np.concatenate([np.arange(count) for count in np.bincount(chosen.layer)])
        grid[chosen.layer, head] = values
        image = axes.imshow(grid, aspect='auto')
        axes.set(title=title, xlabel='head', ylabel='layer')
        axes.locator_params(integer=True)
        axes.grid(False)
        figure.colorbar(image, ax=axes)
    return figure
