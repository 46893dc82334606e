r"""Loss of a model that was trained with full attention: before it is attached to a graph, right
after, and after adaptation.

    python -m experiments.papers.ours.attached --scale small

A small ModernBERT of transformers is trained on masked tokens with full attention. Then
:func:`graphattn.hugging_face.attach` replaces its attention by attention along a window, along
BigBird's graph, or along graphs of an untrained block model. The study reports the loss on masked
tokens of development text three times: before the replacement, right after it, and after a few more
training steps. A model that trains these steps with full attention is reported for comparison.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure

from experiments.papers.figures import points
from experiments.papers.runs import mean_and_spread, spread_of
from experiments.papers.sparsebert.text_runs import TextRuns, text_study
from experiments.papers.study import ScaleName, restored
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary
from graphattn.hugging_face import attach
from graphattn.patterns import parse
from graphattn.sources import BlockModelSource, GraphSource
from graphattn.utils.reading import read_yaml

CONFIG = str(Path(__file__).parent / 'configs' / 'attached.yaml')
FULL = 'full attention'
BEFORE, AFTER, ADAPTED = 'before', 'right after', 'adapted'
LOSS = 'loss on masked tokens'
PATTERNS = {'window': 'SlidingWindow(4)', 'BigBird': 'bigbird(block=2)'}
BLOCK_MODEL = 'block model and window'
CLUSTERS = 16
MODEL = '--model.init_args.model.init_args'
SEEDS = {'smoke': 1, 'small': 3, 'paper': 5}
ADAPTATION = {'smoke': 2, 'small': 200, 'paper': 200}  # steps
# Changes of the config in smoke tests, for both trainings. No paper has this experiment.
SMOKE_SIZES = {'max_length': 32, 'channels': 16, 'heads': 2}
SMOKE = ['--trainer.val_check_interval', '2', '--trainer.limit_val_batches', '1',
         '--trainer.limit_test_batches', '2', '--data.init_args.batch_size', '4',
         '--data.init_args.max_length', str(SMOKE_SIZES['max_length']),
         *(f'{MODEL}.{name}={size}' for name, size in SMOKE_SIZES.items())]


def main(scale: ScaleName = 'small', corpus: str | None = None, seeds: PositiveInt | None = None,
         out: Path = Path('runs/studies')) -> None:
    """Train a ModernBERT with each seed, attach it to each graph, and train it a little more.

    Args:
        scale: Scale of the study; no paper has this experiment, so 'paper' equals 'small' with more
            seeds.
        corpus: The corpus. If omitted, the documentation of the installed Python.
        seeds: Number of trainings.
        out: The folder of all studies.
    """
    runs, _, seeds = text_study('attached', scale, SEEDS[scale], corpus=corpus, seeds=seeds,
                                out=out)
    rows = [row(runs, attention, seeds) for attention in (FULL, *PATTERNS, BLOCK_MODEL)]
    corpus = runs.about.partition(';')[0]
    unigrams = read_summary(pretrained(runs, seeds[0]))['mlm_loss/unigram_entropy']
    runs.study.report(rows, draw(rows, f'{corpus}; {ADAPTATION[scale]} steps of adaptation; '
                                       f'entropy of the unigrams {unigrams:.2f}'),
                      f'{runs.about}; seeds: {len(seeds)}')


def pretrained(runs: TextRuns, seed: int) -> Path:
    """Train a ModernBERT with full attention, and return the folder of the run."""
    steps = ['--trainer.max_steps', '4'] if runs.study.scale == 'smoke' else []
    return _trained(runs, f'attached-bert-{seed}', seed, *steps)


def adapted(runs: TextRuns, attention: str, seed: int) -> Path:
    """Attach the model of :func:`pretrained` to a graph, train it a little more, and return the
    folder of the new run. ``attention`` is the name of a row of the table."""
    steps = str(ADAPTATION[runs.study.scale])
    checkpoint = pretrained(runs, seed) / 'checkpoints' / 'last.ckpt'
    along = [f'{MODEL}.along={_along(runs, attention)}'] * (attention != FULL)
    return _trained(runs, f'attached-{attention.replace(" ", "_")}-{seed}', seed,
                    '--trainer.max_steps', steps, '--trainer.val_check_interval', steps,
                    '--model.init_args.lr', '1e-3', f'{MODEL}.pretrained', str(checkpoint), *along)


def _trained(runs: TextRuns, name: str, seed: int, *options: str) -> Path:
    sizes = SMOKE if runs.study.scale == 'smoke' else []
    return runs.study.trained(name, '--config', CONFIG, *sizes, *options,
                              *runs.corpus_options(seed))


def source_of(runs: TextRuns, attention: str) -> GraphSource | str:
    """Return the pattern or the graph source of a kind of attention, by its name in the table."""
    return PATTERNS.get(attention) or BlockModelSource(**_block_model(runs))


def _along(runs: TextRuns, attention: str) -> str:
    """Return the pattern or the graph source of a kind of attention, as the value of a command-line
    option."""
    return PATTERNS.get(attention) or json.dumps(
        {'class_path': 'graphattn.sources.BlockModelSource', 'init_args': _block_model(runs)})


def _block_model(runs: TextRuns) -> dict:
    sizes = _sizes(runs)
    return {'heads': sizes['heads'], 'head_channels': sizes['channels'] // sizes['heads'],
            'clusters': CLUSTERS, 'estimator': 'paper', 'fixed': PATTERNS['window']}


def _sizes(runs: TextRuns) -> dict[str, int]:
    if runs.study.scale == 'smoke':
        return SMOKE_SIZES
    return read_yaml(Path(CONFIG))['model']['init_args']['model']['init_args']


def row(runs: TextRuns, attention: str, seeds: range) -> dict:
    """Return a row of the table: the losses along one kind of attention, with means and deviations
    over the seeds."""
    losses: dict[str, list[float]] = {BEFORE: [], AFTER: [], ADAPTED: []}
    for seed in seeds:
        run = pretrained(runs, seed)
        losses[BEFORE].append(read_summary(run)['mlm_loss'])
        losses[AFTER].append(loss_right_after(runs, run, attention))
        losses[ADAPTED].append(read_summary(adapted(runs, attention, seed))['mlm_loss'])
    columns = {'attention': attention,
               'density, %': density(runs, adapted(runs, attention, seeds[0]), attention)}
    for when, of_seeds in losses.items():
        columns |= mean_and_spread(f'{when}, loss', of_seeds)
    return columns


def loss_right_after(runs: TextRuns, run: Path, attention: str) -> float:
    """Attach the model of a pre-training to a graph, and return its loss without further training.

    Args:
        runs: The runs of the study.
        run: The folder of the pre-training.
        attention: The kind of attention, by its name in the table.
    """
    training, data, trainer = restored(run)
    if attention != FULL:
        attach(training.model.bert, source_of(runs, attention))
    metrics, = trainer.test(training, data, verbose=False)
    return metrics['test/mlm_loss']


def density(runs: TextRuns, run: Path, attention: str) -> float:
    """Return the density of the graphs of a kind of attention, in per cent.

    The density of a pattern is for the longest sequences. The density of a block model is for the
    graphs that it sampled after training.
    """
    if attention == FULL:
        return 100.
    if attention in PATTERNS:
        length = _sizes(runs)['max_length']
        return 100 * parse(PATTERNS[attention]).build(length, seed=0).density()
    return 100 * statistics.mean(read_summary(run)['density'].values())


def draw(rows: list[dict], about: str) -> Figure:
    """Draw the three losses of each kind of attention: before, right after and after adaptation,
    with deviations."""
    losses = [{'attention': f'{row["attention"]}, {row["density, %"]:.0f} % of the pairs',
               'when': when, LOSS: row[f'{when}, loss'],
               spread_of(LOSS): row[f'{when}, spread']}
              for row in rows for when in (BEFORE, AFTER, ADAPTED)]
    return points(losses, 'attention', [LOSS], 'A ModernBERT trained with full attention, attached '
                  f'to graphs.\n{about}', series='when')


if __name__ == '__main__':
    run_function(main)
