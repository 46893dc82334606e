"""PATTERN and CLUSTER, two benchmarks of graph transformers, drawn from block models."""

import statistics
from dataclasses import dataclass

from experiments.papers.figures import points
from experiments.papers.study import SHIPPED, Runs, Table, Trained, chosen, over_seeds
from experiments.runs.summary import read_summary

CONFIGS = SHIPPED / 'graphs'
DATASETS = 'PATTERN', 'CLUSTER'
METRICS = {'accuracy, %': ('balanced_accuracy', 100.)}
PENALISED = ('--model.init_args.density_weight', '3.0')
MODELS = {'messages alone': ('messages',), 'full (GPS)': (), 'Performer': ('performer',),
          'Exphormer': ('exphormer',), 'expander and edges': ('expander',),
          'block model': ('block_model', *PENALISED),
          'block model and edges': ('block_model_edges', *PENALISED)}
DEFAULT = [name for name in MODELS if name != 'Performer']
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


@dataclass(frozen=True)
class GraphBenchmarks(Trained):
    """A study of graph transformers.

    Args:
        datasets: PATTERN, CLUSTER or both.
        models: Some of: messages alone, full (GPS), Performer, Exphormer, expander and edges, block
            model, block model and edges.
    """

    datasets: list[str] | None = None
    models: list[str] | None = None


def main(study: GraphBenchmarks) -> Table:
    datasets = chosen('datasets', study.datasets or DATASETS, DATASETS)
    models = chosen('models', study.models or DEFAULT, MODELS)
    rows = []
    for dataset in datasets:
        for model in models:
            name, *options = MODELS[model] or ('gps',)
            configs = CONFIGS / 'gps.yaml', CONFIGS / 'gps' / f'{name}.yaml'
            training = Runs(study, f'graphs-{dataset.lower()}', configs[:2 if MODELS[model] else 1],
                            ('--data.init_args.dataset', dataset, *OPTIONS[study.scale], *options,
                             *study.cache))
            runs = [training.fit(name, seed) for seed in study.each(1, 3, 10)]
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
    return Table(rows, figure, about)
