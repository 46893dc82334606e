"""Several hops in one layer, and several layers, on answers that are two edges away."""

from pathlib import Path

from experiments.papers.figures import bars
from experiments.papers.study import ENCODER, Runs, Table, Trained, mean_and_spread
from experiments.runs.summary import read_summary

CONFIG = Path(__file__).parent / 'configs' / 'two_hop.yaml'
CHANCE = 1 / 8  # the config has 8 answers
MODELS = ((1, 1), (1, 2), (1, 3), (1, 5), (2, 1))  # layers and hops
SMOKE = ('--trainer.max_epochs', '1', '--data.init_args.steps_per_epoch', '3',
         '--data.init_args.batch_size', '8')


def main(study: Trained) -> Table:
    rows = []
    for layers, hops in MODELS:
        runs = Runs(study, 'two_hop', (CONFIG,), (
            *(SMOKE if study.scale == 'smoke' else ()),
            f'{ENCODER}.num_layers', str(layers), f'{ENCODER}.hops', str(hops)))
        accuracy = {f'seed {seed}': read_summary(runs.fit(f'{layers}x{hops}', seed))['accuracy']
                    for seed in study.each(1, 3, 3)}
        rows.append({'layers': layers, 'hops': hops, **accuracy,
                     **mean_and_spread('mean', [*accuracy.values()]), 'chance': CHANCE})
    named = [{'model': f'{row["layers"]} layer{"s" * (row["layers"] > 1)}, {row["hops"]} '
                       f'hop{"s" * (row["hops"] > 1)}', **row} for row in rows]
    return Table(rows, bars(named, 'model', ['mean'], 'The answer is two edges away: test accuracy',
                            levels={'mean': {'chance': CHANCE}}))
