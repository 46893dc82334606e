r"""Detection of repeated tokens with several kinds of attention (SBM-Transformer, Figure 4).

    graphattn study repeated_tokens --scale small

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

import csv
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt

from experiments.papers.figures import points
from experiments.papers.sbm_transformer.long_range import baseline, baselines_at
from experiments.papers.study import (
    DENSITY,
    OUT,
    SHIPPED,
    ScaleName,
    Study,
    Table,
    at,
    chosen,
    config_options,
    over_seeds,
)
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary, spread

LENGTH, CHANNELS = {'smoke': 16, 'small': 256, 'paper': 256}, 32
RANK = {'smoke': 4, 'small': 64, 'paper': 256}
DATA = {'smoke': {'length': 16, 'batch_size': 4, 'steps_per_epoch': 2, 'eval_batches': 1},
        'small': {}, 'paper': {'batch_size': 256}}
EPOCHS = {'smoke': 2, 'small': 20, 'paper': 20}
BASELINES = 'linear', 'Linformer', 'Reformer', 'Performer', 'Nystromformer'
DISTRIBUTIONS = {'': {}, ', Algorithm 1': {'distribution': 'poisson'}}
GRADIENTS = {'': {}, ', Eq. 9': {'estimator': 'paper'},
             ", authors' gradient": {'estimator': 'repo'}}
SAMPLED = {f'block model{distribution}{gradient}': DISTRIBUTIONS[distribution] | GRADIENTS[gradient]
           for distribution, gradient in product(DISTRIBUTIONS, GRADIENTS)}
SOLVED = {'full': 'yes', 'block model, Algorithm 1, Eq. 9': 'yes', 'linear': 'no',
          'Linformer': 'no', 'Reformer': 'no', 'Performer': 'no', 'Nystromformer': 'no'}  # Figure 4


def main(scale: ScaleName = 'small', seeds: PositiveInt | None = None,
         attentions: list[str] | None = None, out: Path = OUT) -> None:
    """Train every kind of attention with each seed, and report the results.

    Args:
        scale: Scale of the study: smoke, small or paper.
        seeds: Number of trainings of each kind of attention.
        attentions: Kinds of attention in the table. If omitted, all.
        out: The folder of all studies.
    """
    study, known = Study('repeated_tokens', scale, out), models(LENGTH[scale], RANK[scale])
    names = chosen('attentions', [*known] if attentions is None else attentions, known, '; ')
    rows = []
    for name in names:
        slug = name.lower().replace("'", '').replace(', ', '-').replace('. ', '').replace(' ', '_')
        config, changes = known[name]
        runs = [train(study, slug, config, seed, DATA[scale],
                      {'max_length': LENGTH[scale], **changes}, EPOCHS[scale])
                for seed in at(scale, (1, 3, 3), seeds)]
        lost = sum(map(has_lost_edges, runs)) if name in SAMPLED else None
        rows.append({'attention': name, **means(runs), 'lost their edges': lost,
                     'paper: solved': SOLVED.get(name)})
    title = (f'Which of {LENGTH[scale]} tokens occur twice? One layer, one head. The paper: only '
             'full attention and block models, which become full, solve it')
    study.report(Table(rows, points(rows, 'attention', ['accuracy, %', DENSITY], title)))


def models(length: int, rank: int) -> dict[str, tuple[str, dict]]:
    """Return a config and changes of the encoder for each kind of attention.

    ``rank`` is the number of projections, features and landmarks.
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


def train(study: Study, name: str, config: str, seed: int, data: dict[str, int],
          encoder: dict[str, Any], epochs: int, lr: float = 1e-3) -> Path:
    """Train a config of ``experiments/configs/duplicates`` with changes of data and encoder."""
    model = {'init_args': {'encoder': {'init_args': encoder}}}
    over = {'trainer': {'max_epochs': epochs}, 'model': {'init_args': {'lr': lr, 'model': model}},
            'data': {'init_args': {**data, 'seed': seed}}}
    configs = config_options(SHIPPED / 'duplicates' / f'{config}.yaml', json.dumps(over))
    return study.trained(f'repeated_tokens-{name}-{seed}', *configs, '--seed_everything', str(seed))


def means(runs: Sequence[Path]) -> dict[str, float | None]:
    density = [100 * value for run in runs for value in read_summary(run)['density'].values()]
    return {**over_seeds(runs, {'accuracy, %': ('accuracy', 100.), 'loss': ('loss', 1.)}),
            'density, spread': spread(density)}


def has_lost_edges(run: Path) -> bool:
    """Return whether the final density of a run is less than half of its largest density."""
    with (run / 'metrics.csv').open(newline='', encoding='utf-8') as file:
        values = [row.get('train/density/layer0/all_heads') for row in csv.DictReader(file)]
    density = [float(value) for value in values if value]
    return density[-1] < max(density) / 2


if __name__ == '__main__':
    run_function(main)
