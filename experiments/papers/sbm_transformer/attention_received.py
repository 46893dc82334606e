r"""Images with few or many sampled edges, and the pixels that are attended to (SBM-Transformer,
Fig. 7, 8).

    python -m experiments.papers.sbm_transformer.attention_received --scale small

The study uses the most accurate penalised block model of the study of the density penalty.
``TASK.png`` shows correctly classified test images of lowest and highest density, with the fraction
of queries that attend to each pixel.

The paper claims that harder and darker images have more edges, and that the first layer attends to
dark areas. To test this, the table has three results for each head, over the first test images: the
densities of right and wrong images, Pearson's correlation of density with the mean grey level of an
image, and the correlation of received attention with the grey level of a pixel.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.papers.sbm_transformer.density_runs import STAND_IN, WEIGHTS, density_study
from experiments.papers.sbm_transformer.sampled_graphs import (
    OfInputs,
    most_accurate,
    of_inputs,
    restored_model,
)
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function
from experiments.runs.figures import received_attention, received_shares
from experiments.runs.summary import read_summary

SHAPES = {STAND_IN: (8, 8), 'image': (32, 32), 'pathfinder': (32, 32)}
MAX_IMAGES = 1000
DRAWN = 4  # images per kind
DRAWS = {'smoke': 2, 'small': 32, 'paper': 4}  # sampled graphs to average


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train block models if they are missing, and draw the pixels that their heads attend to.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`density_study`.
    """
    of_tasks, seeds = density_study('attention_received', scale, **kwargs)
    of_tasks = [runs for runs in of_tasks if runs.task in SHAPES]
    if not of_tasks:
        raise ValueError(f"'tasks' must contain at least one task with images: {', '.join(SHAPES)}")
    rows: list[dict] = []
    pictures: dict[str, Figure] = {}
    points: dict[str, tuple[Tensor, Tensor]] = {}
    for runs in of_tasks:
        best = {weight: most_accurate(runs, weight, seeds) for weight in WEIGHTS[scale][1:]}
        weight = max(best, key=lambda weight: read_summary(best[weight])['accuracy'])
        model, test = restored_model(best[weight])
        test = test.take(np.arange(min(MAX_IMAGES, len(test.label))))
        label, found = torch.from_numpy(test.label), of_inputs(model, test)
        images = torch.from_numpy(test.tokens).long().view(len(label), -1)
        received = received_shares(model, images)
        rows += [{'task': runs.task, 'lambda': weight, **row}
                 for row in head_rows(images, label, found, received)]
        chosen = extremes(found, label, DRAWN)
        pictures[runs.task] = received_attention(model, images[chosen], titles(label[chosen]),
                                                 SHAPES[runs.task], DRAWS[scale])
        points[rf'{runs.task}, $\lambda$ = {weight}'] = images.float().mean(dim=1), found.density
    of_tasks[0].study.report(rows, _draw(points), **pictures)


def extremes(found: OfInputs, label: Tensor, number: int) -> Tensor:
    """Return the indices of ``number`` images with the lowest densities, followed by ``number``
    with the highest, among the correctly classified images.

    Args:
        found: Densities and predictions for the images.
        label: Classes of the images, int64 ``[num_images]``.
        number: Number of images at each end.
    """
    right = (found.predicted == label).nonzero()[:, 0]
    order = right[found.density.mean(dim=(0, 1))[right].argsort()]
    return torch.cat([order[:number], order[number:][-number:]])


def head_rows(images: Tensor, label: Tensor, found: OfInputs, received: list[Tensor]) -> list[dict]:
    """Return a row of the table for each head of each layer of a model.

    Args:
        images (Tensor): int64 ``[num_images, num_pixels]``.
        label (Tensor): Classes of the images, int64 ``[num_images]``.
        found (OfInputs): The model's densities and predictions.
        received (list): Attention that pixels receive, from :func:`received_shares`.
    """
    is_right, grey = found.predicted == label, images.float()
    rows = []
    for layer, of_heads in enumerate(received):
        for head, shares in enumerate(of_heads):
            density = found.density[layer, head]
            shown = shares.isfinite()
            rows.append({
                'layer': layer, 'head': head, 'density, %': 100 * float(density.mean()),
                'of those right': 100 * float(density[is_right].mean()),
                'of those wrong': 100 * float(density[~is_right].mean()),
                'density with mean grey level': correlation(density, grey.mean(dim=1)),
                'received with grey level': correlation(shares[shown], grey[shown])})
    return rows


def correlation(first: Tensor, second: Tensor) -> float | None:
    """Return Pearson's correlation of two tensors; ``None`` if one of them is constant."""
    coefficient = float(torch.corrcoef(torch.stack([first, second]).double())[0, 1])
    return coefficient if coefficient == coefficient else None


def titles(label: Tensor) -> list[str]:
    """Return a title for each image that :func:`extremes` selects, with its class and 'lowest' or
    'highest'."""
    kinds = ['lowest'] * DRAWN + ['highest'] * DRAWN
    return [f'{kind}\nclass {value}' for kind, value in zip(kinds, label.tolist())]


def _draw(points: dict[str, tuple[Tensor, Tensor]]) -> Figure:
    num_layers = max(len(density) for _, density in points.values())
    figure = Figure(figsize=(4.6 * num_layers, 3.6 * len(points) + 0.5), layout='constrained')
    grid = figure.subplots(len(points), num_layers, squeeze=False)
    for panels, (name, (grey, density)) in zip(grid, points.items()):
        for layer, (axes, of_heads) in enumerate(zip(panels, density)):
            for head, values in enumerate(of_heads):
                axes.scatter(grey, 100 * values, s=6, alpha=0.5, label=f'head {head}')
            axes.set(title=f'{name}: layer {layer}', xlabel='mean grey level of the image',
                     ylabel='density, %')
            axes.grid()
    grid[0, -1].legend(markerscale=2)
    figure.suptitle('Density of each graph over the grey level of its image. The paper: dark '
                    'images draw more edges')
    return figure


if __name__ == '__main__':
    run_function(main)
