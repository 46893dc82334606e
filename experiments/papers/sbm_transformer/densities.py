r"""Density of graphs by layer, and its variation over inputs (SBM-Transformer, Fig. 5).

    graphattn study densities --scale small

The study uses the block models of the study of the density penalty, with the most accurate seed for
each lambda. The paper shows the unregularised and the best regularised model. For each layer
(averaged over heads) and each head, the table lists mean, deviation, minimum and maximum over the
test inputs. The paper finds that without a penalty, two layers can differ by more than 10 points.
On Pathfinder, it finds that the density of the upper layer varies strongly with the input.
"""

from __future__ import annotations

from torch import Tensor

from experiments.papers.figures import bars
from experiments.papers.sbm_transformer.density import (
    WEIGHTS,
    Densities,
    density_study,
    of_inputs,
    restored_model,
)
from experiments.papers.study import DENSITY, Table, spread_of
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary

ALL_HEADS = 'mean of heads'


@density_study
def main(tasks: list[Densities]) -> Table:
    rows = []
    for runs in tasks:
        for weight in WEIGHTS[runs.study.scale]:
            run = runs.most_accurate(weight)
            about = {'task': runs.task, 'lambda': weight, 'seed': read_summary(run)['seed'],
                     'accuracy, %': 100 * read_summary(run)['accuracy']}
            density = of_inputs(*restored_model(run)).density
            rows += [{**about, **row} for row in layer_rows(density)]
    drawn = [{**row, 'part': f'layer {row["layer"]}, {row["head"]}', spread_of(DENSITY):
              row['spread over inputs']} for row in rows]
    return Table(rows, bars(
        drawn, 'part', [DENSITY], 'Density of the graphs of the test part, with the deviation '
        'from input to input', panel='task', series='lambda'))


def layer_rows(density: Tensor) -> list[dict]:
    """Return a row for each layer and head, of densities ``[layers, heads, num_inputs]``."""
    rows = []
    for layer, of_heads in enumerate(100 * density):
        named = {ALL_HEADS: of_heads.mean(dim=0)} | {
            str(head): values for head, values in enumerate(of_heads)}
        rows += [{'layer': layer, 'head': name, DENSITY: float(values.mean()),
                  'spread over inputs': float(values.std()), 'lowest': float(values.min()),
                  'highest': float(values.max())} for name, values in named.items()]
    return rows


if __name__ == '__main__':
    run_function(main)
