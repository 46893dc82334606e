r"""Attentions that find repeated tokens (SBM-Transformer, Figure 4).

    python -m experiments.papers.sbm_transformer.repeated_tokens --scale small

One layer with one head must tell which of 256 tokens occur twice in their sequence, for which
every token must see every other. The paper: full attention and block models get there, and block
models become full; linear and low-rank attentions do not. A window is beside them, and what other
distributions and gradients make of block models: Algorithm 1's distribution is the paper's, whose
edges never exceed 63 %, and so are the gradient of Eq. 9 and that of its authors' code. A run has
*lost* its edges if it ends with less than half of the highest density it had.

The paper does not say how positions, embeddings and the optimiser were chosen, and with usual
choices full attention fails as well; the configs in ``experiments/configs/duplicates`` say what
works. The smaller scale has batches of 64 sequences, the paper's of 256. Linformer, Performer and
Nystromformer have 64 projections, features and landmarks at the smaller scale, and at the paper's
the 256 of its Table 7; with as many landmarks as tokens Nystromformer is full attention.
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
    """Train every attention with each seed and reports what it finds.

    Args:
        scale: How much of it.
        seeds: Trainings of each attention.
        attentions: Some of the table's; all if omitted.
        out: Folder of all studies.
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
    """Return the config of each attention, and its changes to the encoder.

    Args:
        length (int): Tokens of a sequence.
        rank (int): Projections, features and landmarks.
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
    """Draw loss and density on the way, one line for each seed."""
    share = 1 - (1 - 1 / length)**(length - 1)  # of the tokens that occur elsewhere
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
