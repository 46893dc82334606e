r"""Comparison of several hops in one layer with several layers of one hop, on answers two edges
away.

    graphattn study two_hop --scale small

A token must predict an answer that is two edges away (:class:`TwoHop`). Two layers of one hop have
the same reach as one layer of two hops. One layer of one hop cannot reach the answer, so its
accuracy is exactly chance. The papers have no such experiment.
"""

from pathlib import Path

from experiments.papers.figures import bars
from experiments.papers.study import ENCODER, Runs, Study, Table, mean_and_spread, study
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary

CONFIG = Path(__file__).parent / 'configs' / 'two_hop.yaml'
CHANCE = 1 / 8  # the config has 8 answers
MODELS = ((1, 1), (1, 2), (1, 3), (1, 5), (2, 1))  # layers and hops
SMOKE = ('--trainer.max_epochs', '1', '--data.init_args.steps_per_epoch', '3',
         '--data.init_args.batch_size', '8')


@study(1, 3, 3)
def main(study: Study, seeds: range) -> Table:
    runs = Runs(study, 'two_hop', (CONFIG,), SMOKE if study.scale == 'smoke' else ())
    rows = []
    for layers, hops in MODELS:
        model = f'{ENCODER}.num_layers', str(layers), f'{ENCODER}.hops', str(hops)
        accuracy = {f'seed {seed}': read_summary(
            runs.with_options(*model).fit(f'{layers}x{hops}', seed))['accuracy'] for seed in seeds}
        rows.append({'layers': layers, 'hops': hops, **accuracy,
                     **mean_and_spread('mean', [*accuracy.values()]), 'chance': CHANCE})
    named = [{'model': f'{row["layers"]} layer{"s" * (row["layers"] > 1)}, {row["hops"]} '
                       f'hop{"s" * (row["hops"] > 1)}', **row} for row in rows]
    return Table(rows, bars(named, 'model', ['mean'], 'The answer is two edges away: test accuracy',
                            levels={'mean': {'chance': CHANCE}}))


if __name__ == '__main__':
    run_function(main)
