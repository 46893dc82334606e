r"""Detection of repeated tokens with several kinds of attention (SBM-Transformer, Figure 4).

    python -m experiments.papers.sbm_transformer.repeated_tokens --scale small

One layer with one head must detect which of 256 tokens occur twice in their sequence, so every
token must attend to every other token. The paper finds that full attention and block models solve
the task, and that block models become full. Linear and low-rank attention fail. Here, a window is
included, and block models with other distributions and gradients. The paper uses the distribution
of Algorithm 1, with a density of at most 63 %, and the gradient of Eq. 9 or of its authors' code. A
run has *lost* its edges if its final density is less than half of its maximum.

The paper does not state positions, embeddings and optimiser. With usual choices, full attention
fails as well; the configs in ``experiments/configs/duplicates`` contain choices that work. The
scale ``small`` has batches of 64 sequences, and the scale ``paper`` batches of 256. Linformer,
Performer and Nystromformer have 64 projections, features and landmarks at the small scale, and the
256 of Table 7 at the scale ``paper``. With as many landmarks as tokens, Nystromformer is full
attention.
"""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.papers.figures import plot_histories
from experiments.papers.runs import chosen
from experiments.papers.sbm_transformer.long_range_runs import baseline, baselines_at
from experiments.papers.sbm_transformer.repeated_token_runs import (
    DENSITY,
    has_dead_heads,
    means,
    train,
)
from experiments.papers.study import ScaleName, Study
from experiments.runs.command_line import run_function

LENGTH, CHANNELS = {'smoke': 16, 'small': 256, 'paper': 256}, 32
RANK = {'smoke': 4, 'small': 64, 'paper': 256}
DATA = {'smoke': {'length': 16, 'batch_size': 4, 'steps_per_epoch': 2, 'eval_batches': 1},
        'small': {}, 'paper': {'batch_size': 256}}
EPOCHS = {'smoke': 2, 'small': 20, 'paper': 20}
SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
BASELINES = 'linear', 'Linformer', 'Reformer', 'Performer', 'Nystromformer'
DISTRIBUTIONS = {'': {}, ', Algorithm 1': {'distribution': 'poisson'}}
GRADIENTS = {'': {}, ', Eq. 9': {'estimator': 'paper'},
             ", authors' gradient": {'estimator': 'repo'}}
SAMPLED = {f'block model{distribution}{gradient}': DISTRIBUTIONS[distribution] | GRADIENTS[gradient]
           for distribution, gradient in product(DISTRIBUTIONS, GRADIENTS)}
SOLVED = {'full': 'yes', 'block model, Algorithm 1, Eq. 9': 'yes', 'linear': 'no',
          'Linformer': 'no', 'Reformer': 'no', 'Performer': 'no', 'Nystromformer': 'no'}  # Figure 4


def main(scale: ScaleName = 'small', seeds: PositiveInt | None = None,
         attentions: list[str] | None = None, out: Path = Path('runs/studies')) -> None:
    """Train every kind of attention with each seed, and report the results.

    Args:
        scale: Scale of the study: smoke, small or paper.
        seeds: Number of trainings of each kind of attention.
        attentions: Kinds of attention in the table. If omitted, all.
        out: The folder of all studies.
    """
    study = Study('repeated_tokens', scale, out)
    known = models(LENGTH[scale], RANK[scale])
    names = chosen('attentions', [*known] if attentions is None else attentions, known, '; ')
    runs = {name: [train(study, _slug(name), known[name][0], seed, DATA[scale],
                         {'max_length': LENGTH[scale], **known[name][1]}, epochs=EPOCHS[scale])
                   for seed in range(seeds or SEEDS[scale])] for name in names}
    study.report([_row(name, of_seeds) for name, of_seeds in runs.items()],
                 draw(runs, LENGTH[scale]))


def models(length: int, rank: int) -> dict[str, tuple[str, dict]]:
    """Return the models to train by name. Each is the name of a config and a dict of changed
    arguments of the encoder.

    Args:
        length (int): Number of tokens of a sequence.
        rank (int): Number of projections, features and landmarks.
    """
    radius = max(1, length // 16)
    patterns = {'window': f'SlidingWindow({radius})',
                'BigBird': f'bigbird(block={radius}, num_global=1, num_random=2)'}
    baselines = baselines_at(length, rank)
    return {
        'full': ('full', {}),
        **{name: ('sbm', {'source': {'init_args': source}} if source else {})
           for name, source in SAMPLED.items()},
        **{name: ('full', {'source': {'init_args': {'pattern': pattern}}})
           for name, pattern in patterns.items()},
        **{name: ('full', {'source': None, 'attention': baseline(
            baselines[name], channels=CHANNELS, heads=1)}) for name in BASELINES}}


def _row(name: str, runs: list[Path]) -> dict:
    lost = sum(map(has_dead_heads, runs)) if name in SAMPLED else None
    return {'attention': name, **means(runs), 'lost their edges': lost,
            'paper: solved': SOLVED.get(name)}


def draw(runs: dict[str, list[Path]], length: int) -> Figure:
    """Draw the loss and the density of each run by step. Runs are given by kind of attention, and
    ``length`` is the number of tokens."""
    # expected share of tokens that occur elsewhere in the sequence
    share = 1 - (1 - 1 / length)**(length - 1)
    guess = -share * math.log(share) - (1 - share) * math.log(1 - share)
    figure = Figure(figsize=(12, 6), layout='constrained')
    losses, densities = figure.subplots(1, 2)
    for number, (name, of_seeds) in enumerate(runs.items()):
        style = {'color': f'C{number % 10}', 'ls': '-' if number < 10 else '--', 'label': name}
        plot_histories(losses, of_seeds, 'train/loss', **style)
        if name in SAMPLED:
            plot_histories(densities, of_seeds, DENSITY, 100, **style)
    losses.axhline(guess, color='black', ls=':', lw=1, label=f'guess, {guess:.3f}')
    losses.set(title='loss', xlabel='step', ylabel='cross-entropy, nats')
    losses.set_ylim(0, None)
    densities.set(title='density of the sampled graphs', xlabel='step', ylabel='%', ylim=(0, 103))
    for axes in (losses, densities):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid()
    figure.legend(*losses.get_legend_handles_labels(), loc='outside lower center', ncols=4)
    figure.suptitle(f'Which of {length} tokens occur twice? One layer, one head, one line for each '
                    f'seed')
    return figure


def _slug(name: str) -> str:
    return name.lower().replace("'", '').replace(', ', '-').replace('. ', '').replace(' ', '_')


if __name__ == '__main__':
    run_function(main)
