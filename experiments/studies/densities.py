r"""Density of graphs in each layer, from input to input (SBM-Transformer, Fig. 5).

    python -m experiments.studies.densities --scale small

Block models of the study of the penalty on density, for each lambda the most accurate seed; the
paper draws the unregularised one and the best regularised one. Of each layer there is the density
averaged over heads, and of each head its own: mean over the inputs of the test part, deviation from
input to input, lowest and highest. The paper: without a penalty two layers can differ by more than
10 points, and on Pathfinder the upper one varies very much with the input.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from torch import Tensor

from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary
from experiments.studies.density_runs import WEIGHTS, density_study
from experiments.studies.sampled_graphs import most_accurate, of_inputs, restored_model
from experiments.studies.study import ScaleName

ALL_HEADS = 'mean of heads'


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train block models, if they are not there, and looks at each input's graphs.

    Args:
        scale: How much of it.
        **kwargs: Those of :func:`density_study`.
    """
    of_tasks, seeds = density_study('densities', scale, **kwargs)
    rows = []
    for runs in of_tasks:
        for weight in WEIGHTS[scale]:
            run = most_accurate(runs, weight, seeds)
            density = of_inputs(*restored_model(run)).density
            about = {'task': runs.task, 'lambda': weight, 'seed': read_summary(run)['seed'],
                     'accuracy, %': 100 * read_summary(run)['accuracy']}
            rows += [{**about, **row} for row in layer_rows(density)]
    of_tasks[0].study.report(rows, _draw(rows))


def layer_rows(density: Tensor) -> list[dict]:
    """Return one row for each layer, and one for each of its heads, in per cent.

    Args:
        density (Tensor): ``[layers, heads, num_inputs]``, from 0 to 1.
    """
    rows = []
    for layer, of_heads in enumerate(100 * density):
        named = {ALL_HEADS: of_heads.mean(dim=0)} | {
            str(head): values for head, values in enumerate(of_heads)}
        rows += [{'layer': layer, 'head': name, 'density, %': float(values.mean()),
                  'spread over inputs': float(values.std()), 'lowest': float(values.min()),
                  'highest': float(values.max())} for name, values in named.items()]
    return rows


def _draw(rows: list[dict]) -> Figure:
    tasks = list(dict.fromkeys(row['task'] for row in rows))
    weights = list(dict.fromkeys(row['lambda'] for row in rows))
    layers = sorted({row['layer'] for row in rows})
    width = 0.8 / len(weights)
    figure = Figure(figsize=(max(7.5, 4.2 * len(tasks)), 4.8), layout='constrained')
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task in zip(panels, tasks):
        for number, weight in enumerate(weights):
            own = [row for row in rows if (row['task'], row['lambda']) == (task, weight)]
            means = [row for row in own if row['head'] == ALL_HEADS]
            at = [layer + width * (number - (len(weights) - 1) / 2) for layer in layers]
            axes.bar(at, [row['density, %'] for row in means], 0.92 * width,
                     yerr=[row['spread over inputs'] for row in means], capsize=3, alpha=0.6,
                     color=f'C{number}', label=rf'$\lambda$ = {weight}')
            heads = [row for row in own if row['head'] != ALL_HEADS]
            axes.scatter([at[row['layer']] for row in heads], [row['density, %'] for row in heads],
                         s=14, color=f'C{number}', edgecolor='black', lw=0.5, zorder=3)
        axes.set(title=task, xticks=layers, xticklabels=[f'layer {layer}' for layer in layers])
        axes.grid(axis='y')
    panels[0].set_ylabel('density, %')
    panels[-1].legend()
    figure.suptitle('Density of the graphs of the test part: bars are means of heads, with the '
                    'deviation from input to input;\ndots are single heads')
    return figure


if __name__ == '__main__':
    run_function(main)
