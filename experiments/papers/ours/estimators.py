"""Estimators of the gradient of a block model, and whether they keep the edges of the model."""

from itertools import product

from experiments.papers.figures import points
from experiments.papers.sbm_transformer.repeated_tokens import has_lost_edges, means, train
from experiments.papers.study import DENSITY, Table, Trained
from experiments.runs.summary import read_summary
from graphattn.samplers.straight_through import ESTIMATORS

DISTRIBUTIONS = {'smoke': ('poisson',), 'small': ('bernoulli', 'poisson'),
                 'paper': ('bernoulli', 'poisson')}
LENGTH = {'smoke': 16, 'small': 32, 'paper': 256}
DATA = {'smoke': {'length': 16, 'batch_size': 4, 'steps_per_epoch': 2, 'eval_batches': 1},
        'small': {'length': 32, 'batch_size': 32, 'steps_per_epoch': 75, 'eval_batches': 8},
        'paper': {'batch_size': 256}}
EPOCHS = {'smoke': 2, 'small': 20, 'paper': 20}
RATE = {'smoke': 1e-3, 'small': 2e-3, 'paper': 1e-3}
CLUSTERS = {'smoke': 4, 'small': 16, 'paper': 128}


def main(study: Trained) -> Table:
    scale = study.scale
    models = {(None, 'full attention'): ('estimators-full', 'full', {})}
    for distribution, estimator in product(DISTRIBUTIONS[scale], ESTIMATORS):
        source = {'distribution': distribution, 'estimator': estimator, 'clusters': CLUSTERS[scale]}
        models[distribution, estimator] = (f'{distribution}-{estimator}', 'sbm',
                                           {'source': {'init_args': source}})
    sizes = {'num_tokens': LENGTH[scale] + 1, 'max_length': LENGTH[scale]}
    rows = []
    for (distribution, estimator), (name, config, changes) in models.items():
        runs = [train(study, name, config, seed, DATA[scale], sizes | changes, EPOCHS[scale],
                      RATE[scale]) for seed in study.each(1, 8, 8)]
        rows.append({'distribution': distribution, 'estimator': estimator, 'runs': len(runs),
                     'lost their edges': sum(map(has_lost_edges, runs)),
                     'solved': sum(read_summary(run)['accuracy'] >= 0.99 for run in runs),
                     **means(runs)})
    drawn = [{**row, 'distribution': row['distribution'] or 'all edges'} for row in rows]
    return Table(rows, points(drawn, 'estimator', ['accuracy, %', DENSITY], 'Repeated tokens need '
                              'all edges: which gradient finds and keeps them?',
                              series='distribution'))
