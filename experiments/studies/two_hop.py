r"""Does one layer of several hops see what one layer of one hop cannot?

    python -m experiments.studies.two_hop --scale small

A token must name an answer that stands two edges away (:class:`TwoHop`). One layer is trained with
several numbers of hops, and so are two layers of one hop, which reach as far. With one hop of one
layer the answer is out of sight: exactly the share of a guess is right.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary, spread
from experiments.studies.runs import ENCODER, Runs
from experiments.studies.study import ScaleName, Study

CONFIG = str(Path(__file__).parent / 'configs' / 'two_hop.yaml')
CHANCE = 1 / 8  # one of the answers of the config
MODELS = ((1, 1), (1, 2), (1, 3), (1, 5), (2, 1))  # layers and hops
SEEDS = {'smoke': [0], 'small': [0, 1, 2], 'paper': [0, 1, 2]}
SIZES = {'smoke': ['--trainer.max_epochs', '1', '--data.init_args.steps_per_epoch', '3',
                   '--data.init_args.batch_size', '8'],
         'small': [], 'paper': []}


def main(scale: ScaleName = 'small', out: Path = Path('runs/studies')) -> None:
    """Train every model with each seed and reports how often it finds the answer.

    Args:
        scale: How large; the paper has no such experiment, so its scale is the small one.
        out: Folder of all studies.
    """
    study = Study('two_hop', scale, out)
    runs = {model: {seed: train(study, *model, seed) for seed in SEEDS[scale]} for model in MODELS}
    rows = [row(*model, of_seed) for model, of_seed in runs.items()]
    study.report(rows, draw(rows, {model: [development(run) for run in of_seed.values()]
                                   for model, of_seed in runs.items()}))


def train(study: Study, layers: int, hops: int, seed: int) -> Path:
    """Train one model."""
    model = f'{ENCODER}.num_layers', str(layers), f'{ENCODER}.hops', str(hops)
    return Runs(study, 'two_hop', (CONFIG,), (*SIZES[study.scale], *model)).fit(
        f'{layers}x{hops}', seed)


def row(layers: int, hops: int, run_of_seed: dict[int, Path]) -> dict:
    """Return the test accuracy of one model: each seed's, mean and standard deviation."""
    accuracy = {f'seed {seed}': read_summary(run)['accuracy'] for seed, run in run_of_seed.items()}
    found = list(accuracy.values())
    return {'layers': layers, 'hops': hops, **accuracy, 'mean': statistics.mean(found),
            'std': spread(found), 'chance': CHANCE}


def development(run: Path) -> list[float]:
    """Return the accuracy on the development batches after each epoch."""
    with (run / 'metrics.csv').open(newline='', encoding='utf-8') as file:
        return [float(epoch['val/accuracy']) for epoch in csv.DictReader(file)]


def draw(rows: list[dict], curves: dict[tuple[int, int], list[list[float]]]) -> Figure:
    """Draw the accuracies in the end, and on the way there."""
    figure = Figure(figsize=(11, 4), layout='constrained')
    bars, lines = figure.subplots(1, 2, width_ratios=[2, 3])
    names = [_name(*model) for model in curves]
    for y, (result, name) in enumerate(zip(rows, names)):
        accuracy = [value for column, value in result.items() if column.startswith('seed')]
        bars.barh(y, result['mean'], color=f'C{y}', alpha=0.4)
        bars.scatter(accuracy, [y] * len(accuracy), color=f'C{y}', zorder=3)
        for number, curve in enumerate(curves[result['layers'], result['hops']]):
            lines.plot(range(1, len(curve) + 1), curve, color=f'C{y}', marker='.',
                       label=None if number else name)
    bars.axvline(CHANCE, color='black', ls='--', lw=1)
    bars.set(title='test accuracy of each seed, and mean', xlim=(0, 1.05), xlabel='accuracy',
             yticks=range(len(names)), yticklabels=names)
    bars.invert_yaxis()
    lines.axhline(CHANCE, color='black', ls='--', lw=1, label='chance')
    lines.set(title='in training, one line for each seed', xlabel='epoch',
              ylabel='accuracy, development', ylim=(0, 1.05))
    lines.xaxis.set_major_locator(MaxNLocator(integer=True))
    lines.grid()
    lines.legend()
    figure.suptitle('The answer stands two edges away')
    return figure


def _name(layers: int, hops: int) -> str:
    return f'{layers} layer{"s" * (layers > 1)}, {hops} hop{"s" * (hops > 1)}'


if __name__ == '__main__':
    run_function(main)
