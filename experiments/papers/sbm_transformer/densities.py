r"""Density of graphs by layer, and its variation over inputs (SBM-Transformer, Fig. 5).

    python -m experiments.papers.sbm_transformer.densities --scale small

The study uses the block models of the study of the density penalty, with the most accurate seed for
each lambda. The paper shows the unregularised and the best regularised model. For each layer
(averaged over heads) and each head, the table lists mean, deviation, minimum and maximum over the
test inputs. The paper finds that without a penalty, two layers can differ by more than 10 points.
On Pathfinder, it finds that the density of the upper layer varies strongly with the input.
"""

from __future__ import annotations

from torch import Tensor

from experiments.papers.figures import bars
from experiments.papers.runs import spread_of
from experiments.papers.sbm_transformer.density_runs import WEIGHTS, density_study
from experiments.papers.sbm_transformer.sampled_graphs import (
    most_accurate,
    of_inputs,
    restored_model,
)
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary

ALL_HEADS = 'mean of heads'


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train block models if they are missing, and measure the density of the graphs of each input.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`density_study`.
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
    drawn = [{**row, 'part': f'layer {row["layer"]}, {row["head"]}', spread_of('density, %'):
              row['spread over inputs']} for row in rows]
    of_tasks[0].study.report(rows, bars(
        drawn, 'part', ['density, %'], 'Density of the graphs of the test part, with the deviation '
        'from input to input', panel='task', series='lambda'))


def layer_rows(density: Tensor) -> list[dict]:
    """Return a row for each layer, averaged over its heads, and for each head, with the mean,
    deviation, minimum and maximum of the density over inputs, in per cent.

    Args:
        density (Tensor): Densities ``[layers, heads, num_inputs]``, from 0 to 1.
    """
    rows = []
    for layer, of_heads in enumerate(100 * density):
        named = {ALL_HEADS: of_heads.mean(dim=0)} | {
            str(head): values for head, values in enumerate(of_heads)}
        rows += [{'layer': layer, 'head': name, 'density, %': float(values.mean()),
                  'spread over inputs': float(values.std()), 'lowest': float(values.min()),
                  'highest': float(values.max())} for name, values in named.items()]
    return rows


if __name__ == '__main__':
    run_function(main)
