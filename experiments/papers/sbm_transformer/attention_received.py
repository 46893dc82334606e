"""Images with few or many sampled edges, and which pixels are attended to (SBM, Fig. 7, 8)."""

import numpy as np
import torch
from torch import Tensor

from experiments.papers.figures import points
from experiments.papers.sbm_transformer.density import DensityStudy, OfInputs, of_inputs, reloaded
from experiments.papers.study import DENSITY, Table
from experiments.runs.figures import received_attention, received_shares
from experiments.runs.summary import read_summary

SHAPES = {'digits': (8, 8), 'image': (32, 32), 'pathfinder': (32, 32)}
MAX_IMAGES = 1000
DRAWN = 4  # images per kind
DRAWS = {'smoke': 2, 'small': 32, 'paper': 4}  # sampled graphs to average
CORRELATIONS = 'density with mean grey level', 'received with grey level'


def main(study: DensityStudy) -> Table:
    tasks = [runs for runs in study.asked() if runs.task in SHAPES]
    if not tasks:
        raise ValueError(f"'tasks' must contain at least one task with images: {', '.join(SHAPES)}")
    rows, pictures = [], {}
    for runs in tasks:
        best = {weight: runs.most_accurate(weight) for weight in study.weights[1:]}
        weight = max(best, key=lambda weight: read_summary(best[weight])['accuracy'])
        model, test = reloaded(best[weight])
        test = test.take(np.arange(min(MAX_IMAGES, len(test.label))))
        label, found = torch.from_numpy(test.label), of_inputs(model, test)
        images = torch.from_numpy(test.tokens).long().view(len(label), -1)
        received = received_shares(model, images)
        rows += [{'task': runs.task, 'lambda': weight, **row}
                 for row in head_rows(images, label, found, received)]
        shown = extremes(found, label, DRAWN)
        titles = [f'{kind}\nclass {value}' for kind, value in zip(
            ['lowest'] * DRAWN + ['highest'] * DRAWN, label[shown].tolist())]
        pictures[runs.task] = received_attention(model, images[shown], titles, SHAPES[runs.task],
                                                 DRAWS[study.scale])
    named = [{**row, 'part': f'{row["task"]}: layer {row["layer"]}, head {row["head"]}'}
             for row in rows]
    figure = points(named, 'part', (DENSITY, *CORRELATIONS), 'Densities, and correlations with '
                    'grey levels. The paper: dark images draw more edges')
    return Table(rows, figure, others=pictures)


def extremes(found: OfInputs, label: Tensor, number: int) -> Tensor:
    """Return which images that are classified right have the lowest and the highest densities."""
    right = (found.predicted == label).nonzero()[:, 0]
    order = right[found.density.mean(dim=(0, 1))[right].argsort()]
    return torch.cat([order[:number], order[number:][-number:]])


def head_rows(images: Tensor, label: Tensor, found: OfInputs, received: list[Tensor]) -> list[dict]:
    is_right, grey = found.predicted == label, images.float()
    rows = []
    for layer, of_heads in enumerate(received):
        for head, shares in enumerate(of_heads):
            density = found.density[layer, head]
            shown = shares.isfinite()
            rows.append({
                'layer': layer, 'head': head, DENSITY: 100 * float(density.mean()),
                'of those right': 100 * float(density[is_right].mean()),
                'of those wrong': 100 * float(density[~is_right].mean()),
                **dict(zip(CORRELATIONS, (correlation(density, grey.mean(dim=1)),
                                          correlation(shares[shown], grey[shown]))))})
    return rows


def correlation(first: Tensor, second: Tensor) -> float | None:
    """Return Pearson's correlation of two tensors; ``None`` if one of them is constant."""
    coefficient = float(torch.corrcoef(torch.stack([first, second]).double())[0, 1])
    return coefficient if coefficient == coefficient else None
