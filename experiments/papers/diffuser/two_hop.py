r"""Comparison of several hops in one layer with several layers of one hop, on answers two edges
away.

    python -m experiments.papers.diffuser.two_hop --scale small

A token must predict an answer that is two edges away (:class:`TwoHop`). The study trains one layer
with several numbers of hops, and two layers of one hop, which have the same reach. One layer of one
hop cannot reach the answer, so its accuracy is exactly chance.
"""

from __future__ import annotations

from pathlib import Path

from experiments.papers.figures import bars, panels_of, plot_histories
from experiments.papers.runs import ENCODER, Runs, mean_and_spread
from experiments.papers.study import ScaleName, Study
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary

CONFIG = str(Path(__file__).parent / 'configs' / 'two_hop.yaml')
CHANCE = 1 / 8  # the config has 8 answers
MODELS = ((1, 1), (1, 2), (1, 3), (1, 5), (2, 1))  # layers and hops
SEEDS = {'smoke': [0], 'small': [0, 1, 2], 'paper': [0, 1, 2]}
SIZES = {'smoke': ['--trainer.max_epochs', '1', '--data.init_args.steps_per_epoch', '3',
                   '--data.init_args.batch_size', '8'],
         'small': [], 'paper': []}


def main(scale: ScaleName = 'small', out: Path = Path('runs/studies')) -> None:
    """Train every model with each seed, and report its accuracy.

    Args:
        scale: Scale of the study; the papers have no such experiment, so 'paper' equals 'small'.
        out: The folder of all studies.
    """
    study = Study('two_hop', scale, out)
    runs = {model: {seed: train(study, *model, seed) for seed in SEEDS[scale]} for model in MODELS}
    rows = [row(*model, of_seed) for model, of_seed in runs.items()]
    names = [_name(*model) for model in runs]
    figure = bars([{'model': name, **row} for name, row in zip(names, rows)], 'model', ['mean'],
                  'The answer is two edges away: test accuracy',
                  levels={'mean': {'chance': CHANCE}})
    learning, (axes,) = panels_of(['in training, one line for each seed'], '', (6., 4.))
    for number, (name, of_seed) in enumerate(zip(names, runs.values())):
        plot_histories(axes, [*of_seed.values()], 'val/accuracy', color=f'C{number}', label=name,
                       marker='.')
    axes.set(xlabel='step', ylabel='accuracy, development', ylim=(0, 1.05))
    axes.legend()
    study.report(rows, figure, learning=learning)


def train(study: Study, layers: int, hops: int, seed: int) -> Path:
    """Train one model of the study on the task TwoHop, and return the folder of its run."""
    model = f'{ENCODER}.num_layers', str(layers), f'{ENCODER}.hops', str(hops)
    return Runs(study, 'two_hop', (CONFIG,), (*SIZES[study.scale], *model)).fit(
        f'{layers}x{hops}', seed)


def row(layers: int, hops: int, run_of_seed: dict[int, Path]) -> dict:
    """Return a row of the table for one model: its test accuracy for each seed, their mean and
    their standard deviation.

    Args:
        layers: Number of layers.
        hops: Number of hops.
        run_of_seed: The run of each seed.
    """
    accuracy = {f'seed {seed}': read_summary(run)['accuracy'] for seed, run in run_of_seed.items()}
    found = list(accuracy.values())
    return {'layers': layers, 'hops': hops, **accuracy, **mean_and_spread('mean', found),
            'chance': CHANCE}


def _name(layers: int, hops: int) -> str:
    return f'{layers} layer{"s" * (layers > 1)}, {hops} hop{"s" * (hops > 1)}'


if __name__ == '__main__':
    run_function(main)
