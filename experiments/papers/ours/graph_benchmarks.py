r"""PATTERN and CLUSTER, two benchmarks of graph transformers. The graphs of both are sampled from
block models.

    graphattn study graph_benchmarks --scale small

The study trains one graph transformer with several kinds of attention among the nodes of a graph.
They are: none; full (GPS); along an expander and the edges of the data, with a virtual node
(Exphormer) or without; and along edges that a block model samples, alone and beside the edges of
the data. The density of block models is penalised, so that they can be compared with Exphormer at
equal numbers of edges.

The scale ``small`` trains 4 layers of 64 channels for 10 epochs on 2,000 graphs, which is 630
steps. Published rows are results of larger models on 10,000 graphs.

Sources: Dwivedi et al., "Benchmarking Graph Neural Networks" (2020); Rampášek et al., "GPS" (2022),
Table 1; Shirzad et al., "Exphormer" (2023), Table 2.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.papers.figures import points
from experiments.papers.study import (
    OUT,
    SHIPPED,
    Runs,
    ScaleName,
    Study,
    Table,
    at,
    chosen,
    over_seeds,
)
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary

CONFIGS = SHIPPED / 'graphs'
DATASETS = 'PATTERN', 'CLUSTER'
METRICS = {'accuracy, %': ('balanced_accuracy', 100.)}
PENALISED = ('--model.init_args.density_weight', '3.0')
MODELS = {'messages alone': ('messages',), 'full (GPS)': (), 'Performer': ('performer',),
          'Exphormer': ('exphormer',), 'expander and edges': ('expander',),
          'block model': ('block_model', *PENALISED),
          'block model and edges': ('block_model_edges', *PENALISED)}
DEFAULT = ['messages alone', 'full (GPS)', 'Exphormer', 'expander and edges', 'block model',
           'block model and edges']
PUBLISHED = {'PATTERN': {'full (GPS)': 86.69, 'Exphormer': 86.74},
             'CLUSTER': {'full (GPS)': 78.02, 'Exphormer': 78.07}}
MODEL = '--model.init_args.model.init_args'
SMALL = ('--trainer.max_epochs', '10', '--model.init_args.lr', '1e-3', f'{MODEL}.num_layers', '4',
         '--data.init_args.num_graphs', '[2000,500,500]')
SMOKE = ('--trainer.max_epochs', '1', '--trainer.limit_train_batches', '2',
         '--trainer.limit_val_batches', '1', '--trainer.limit_test_batches', '2',
         f'{MODEL}.num_layers', '1', '--data.init_args.batch_size', '4',
         '--data.init_args.num_graphs', '[100,100,100]')
OPTIONS = {'smoke': SMOKE, 'small': SMALL, 'paper': ()}


def main(scale: ScaleName = 'small', datasets: list[str] | None = None,
         models: list[str] | None = None, seeds: PositiveInt | None = None,
         out: Path = OUT) -> None:
    """Train each model on each data set.

    Args:
        scale: Scale of the study: smoke, small or paper.
        datasets: PATTERN, CLUSTER or both.
        models: Some of: messages alone, full (GPS), Performer, Exphormer, expander and edges, block
            model, block model and edges.
        seeds: Number of trainings of each kind.
        out: The folder of all studies.
    """
    study = Study('graph_benchmarks', scale, out)
    datasets = chosen('datasets', datasets or DATASETS, DATASETS)
    models = chosen('models', models or DEFAULT, MODELS)
    rows = []
    for dataset in datasets:
        for model in models:
            name, *options = MODELS[model] or ('gps',)
            configs = CONFIGS / 'gps.yaml', CONFIGS / 'gps' / f'{name}.yaml'
            training = Runs(study, f'graphs-{dataset.lower()}', configs[:2 if MODELS[model] else 1],
                            ('--data.init_args.dataset', dataset, *OPTIONS[scale], *options,
                             *study.cache))
            runs = [training.fit(name, seed) for seed in at(scale, (1, 3, 10), seeds)]
            reports = [read_summary(run) for run in runs]
            rows.append({
                'data': dataset, 'attention': model, **over_seeds(runs, METRICS),
                'parameters': reports[0]['parameters'],
                's an epoch': statistics.median(report['seconds'] / report['epochs']
                                                for report in reports),
                'published, %': PUBLISHED[dataset].get(model)})
    about = 'graphs drawn from the published distribution; published rows: more graphs and steps'
    levels = {dataset: {'GPS, published': PUBLISHED[dataset]['full (GPS)']} for dataset in datasets}
    figure = points(rows, 'attention', [*METRICS], f'Accuracy over classes of nodes.\n{about}',
                    panel='data', levels=levels)
    study.report(Table(rows, figure, about))


if __name__ == '__main__':
    run_function(main)
