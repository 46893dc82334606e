"""Detection of repeated tokens with several kinds of attention (SBM-Transformer, Figure 4)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from experiments.papers import study as studies
from experiments.papers.figures import points
from experiments.papers.sbm_transformer.long_range import baseline, baselines_at
from experiments.runs.summary import read_metrics, read_summary, spread

LENGTH, CHANNELS = {'smoke': 16, 'small': 256, 'paper': 256}, 32
RANK = {'smoke': 4, 'small': 64, 'paper': 256}
DATA = {'smoke': {'length': 16, 'batch_size': 4, 'steps_per_epoch': 2, 'eval_batches': 1},
        'small': {}, 'paper': {'batch_size': 256}}
EPOCHS = {'smoke': 2, 'small': 20, 'paper': 20}
# The paper does not state positions, embeddings and optimiser; those of the configs work.
BASELINES = 'linear', 'Linformer', 'Reformer', 'Performer', 'Nystromformer'
DISTRIBUTIONS = {'': {}, ', Algorithm 1': {'distribution': 'poisson'}}
GRADIENTS = {'': {}, ', Eq. 9': {'estimator': 'paper'},
             ", authors' gradient": {'estimator': 'repo'}}
SAMPLED = {f'block model{distribution}{gradient}': DISTRIBUTIONS[distribution] | GRADIENTS[gradient]
           for distribution, gradient in product(DISTRIBUTIONS, GRADIENTS)}
SOLVED = {'full': 'yes', 'block model, Algorithm 1, Eq. 9': 'yes', 'linear': 'no',
          'Linformer': 'no', 'Reformer': 'no', 'Performer': 'no', 'Nystromformer': 'no'}  # Figure 4


@dataclass(frozen=True)
class RepeatedTokens(studies.Trained):
    """A study of repeated tokens.

    Args:
        attentions: Kinds of attention in the table. If omitted, all.
    """

    attentions: list[str] | None = None


def main(study: RepeatedTokens) -> studies.Table:
    scale, rows = study.scale, []
    known = models(LENGTH[scale], RANK[scale])
    for name in studies.chosen('attentions', study.attentions or [*known], known, '; '):
        slug = name.lower().replace("'", '').replace(', ', '-').replace('. ', '').replace(' ', '_')
        config, changes = known[name]
        runs = [train(study, slug, config, seed, DATA[scale],
                      {'max_length': LENGTH[scale], **changes}, EPOCHS[scale])
                for seed in study.each(1, 3, 3)]
        lost = sum(map(has_lost_edges, runs)) if name in SAMPLED else None
        rows.append({'attention': name, **means(runs), 'lost their edges': lost,
                     'paper: solved': SOLVED.get(name)})
    title = (f'Which of {LENGTH[scale]} tokens occur twice? One layer, one head. The paper: only '
             'full attention and block models, which become full, solve it')
    return studies.Table(rows, points(rows, 'attention', ['accuracy, %', studies.DENSITY], title))


def models(length: int, rank: int) -> dict[str, tuple[str, dict]]:
    """Return a config and changes of the encoder for each kind of attention."""
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


def train(study: studies.Study, name: str, config: str, seed: int, data: dict[str, int],
          encoder: dict[str, Any], epochs: int, lr: float = 1e-3) -> Path:
    """Train a config of ``experiments/configs/duplicates`` with changes of data and encoder."""
    model = {'init_args': {'encoder': {'init_args': encoder}}}
    over = {'trainer': {'max_epochs': epochs}, 'model': {'init_args': {'lr': lr, 'model': model}},
            'data': {'init_args': {**data, 'seed': seed}}}
    whole = studies.SHIPPED / 'duplicates' / f'{config}.yaml'
    return study.trained(f'repeated_tokens-{name}-{seed}', *studies.config_options(
        whole, json.dumps(over)), '--seed_everything', str(seed))


def means(runs: Sequence[Path]) -> dict[str, float | None]:
    density = [100 * value for run in runs for value in read_summary(run)['density'].values()]
    return {**studies.over_seeds(runs, {'accuracy, %': ('accuracy', 100.), 'loss': ('loss', 1.)}),
            'density, spread': spread(density)}


def has_lost_edges(run: Path) -> bool:
    name = 'train/density/layer0/all_heads'
    density = [row[name] for row in read_metrics(run) if name in row]
    return density[-1] < max(density) / 2
