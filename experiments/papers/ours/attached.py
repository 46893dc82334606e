"""Loss of a trained model before and after it is attached to a graph, and after adaptation."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.papers.figures import points
from experiments.papers.sparsebert.texts import Pretrainings, loss_of
from experiments.papers.study import DENSITY, Table, mean_and_spread, restored, spread_of, tested
from experiments.runs.summary import read_summary
from graphattn.hugging_face import attach
from graphattn.patterns import parse
from graphattn.sources import BlockModelSource
from graphattn.utils.reading import read_yaml

CONFIG = Path(__file__).parent / 'configs' / 'attached.yaml'
FULL = 'full attention'
WHEN = BEFORE, AFTER, ADAPTED = 'before', 'right after', 'adapted'
LOSS = 'loss on masked tokens'
PATTERNS = {'window': 'SlidingWindow(4)', 'BigBird': 'bigbird(block=2)'}
BLOCK_MODEL = 'block model and window'
CLUSTERS = 16
MODEL = '--model.init_args.model.init_args'
STEPS = {'smoke': 2, 'small': 200, 'paper': 200}  # of adaptation
SMOKE_SIZES = {'max_length': 32, 'channels': 16, 'heads': 2}
SMOKE = ['--trainer.val_check_interval', '2', '--trainer.limit_val_batches', '1',
         '--trainer.limit_test_batches', '2', '--data.init_args.batch_size', '4',
         '--data.init_args.max_length', str(SMOKE_SIZES['max_length']),
         *(f'{MODEL}.{name}={size}' for name, size in SMOKE_SIZES.items())]


def main(texts: Pretrainings) -> Table:
    seeds = texts.each(1, 3, 5)
    before = {seed: _trained(
        texts, f'attached-bert-{seed}', seed,
        *(['--trainer.max_steps', '4'] if texts.scale == 'smoke' else [])) for seed in seeds}
    rows = [row(texts, attention, before) for attention in (FULL, *PATTERNS, BLOCK_MODEL)]
    unigrams = read_summary(before[0])['mlm_loss/unigram_entropy']
    about = (f'{texts.about}; {STEPS[texts.scale]} steps of adaptation; '
             f'entropy of the unigrams {unigrams:.2f}')
    losses = [{'attention': f'{row["attention"]}, {row[DENSITY]:.0f} % of the pairs',
               'when': when, LOSS: row[f'{when}, loss'], spread_of(LOSS): row[f'{when}, spread']}
              for row in rows for when in WHEN]
    figure = points(losses, 'attention', [LOSS], 'A ModernBERT trained with full attention, '
                    f'attached to graphs.\n{about}', series='when')
    return Table(rows, figure, f'{texts.about}; seeds: {len(seeds)}')


def row(texts: Pretrainings, attention: str, before: dict[int, Path]) -> dict:
    sizes = SMOKE_SIZES if texts.scale == 'smoke' else read_yaml(CONFIG)['model'][
        'init_args']['model']['init_args']
    source = {'heads': sizes['heads'], 'head_channels': sizes['channels'] // sizes['heads'],
              'clusters': CLUSTERS, 'estimator': 'paper', 'fixed': PATTERNS['window']}
    along = PATTERNS.get(attention) or json.dumps(
        {'class_path': 'graphattn.sources.BlockModelSource', 'init_args': source})
    options = ['--trainer.max_steps', str(STEPS[texts.scale]),
               '--trainer.val_check_interval', str(STEPS[texts.scale]),
               '--model.init_args.lr', '1e-3']
    losses, adapted = {when: [] for when in WHEN}, []
    for seed, run in before.items():
        training, *others = restored(run)
        if attention != FULL:
            attach(training.model.bert, PATTERNS.get(attention) or BlockModelSource(**source))
        losses[BEFORE].append(loss_of(run))
        losses[AFTER].append(tested((training, *others), 'mlm_loss'))
        adapted.append(_trained(
            texts, f'attached-{attention.replace(" ", "_")}-{seed}', seed, *options,
            f'{MODEL}.pretrained', str(run / 'checkpoints' / 'last.ckpt'),
            *([f'{MODEL}.along={along}'] if attention != FULL else [])))
        losses[ADAPTED].append(loss_of(adapted[-1]))
    columns = {'attention': attention,
               DENSITY: density(attention, sizes['max_length'], adapted[0])}
    for when, of_seeds in losses.items():
        columns |= mean_and_spread(f'{when}, loss', of_seeds)
    return columns


def density(attention: str, length: int, run: Path) -> float:
    """Return the density of a pattern at a length, or of the graphs that a run has sampled."""
    if attention == FULL:
        return 100.
    if attention in PATTERNS:
        return 100 * parse(PATTERNS[attention]).build(length, seed=0).density()
    return 100 * statistics.mean(read_summary(run)['density'].values())


def _trained(texts: Pretrainings, name: str, seed: int, *options: str) -> Path:
    sizes: Sequence[str] = SMOKE if texts.scale == 'smoke' else ()
    return texts.trained(name, '--config', str(CONFIG), *sizes, *options,
                         *texts.corpus_options(seed))
