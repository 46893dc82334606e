"""Density of graphs by layer, and its variation over inputs (SBM-Transformer, Fig. 5)."""

from torch import Tensor

from experiments.papers.figures import bars
from experiments.papers.sbm_transformer.density import DensityStudy, of_inputs, reloaded
from experiments.papers.study import DENSITY, Table, spread_of
from experiments.runs.summary import read_summary

ALL_HEADS = 'mean of heads'


def main(study: DensityStudy) -> Table:
    rows = []
    for runs in study.asked():
        for weight in study.weights:
            run = runs.most_accurate(weight)
            about = {'task': runs.task, 'lambda': weight, 'seed': read_summary(run)['seed'],
                     'accuracy, %': 100 * read_summary(run)['accuracy']}
            density = of_inputs(*reloaded(run)).density
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
