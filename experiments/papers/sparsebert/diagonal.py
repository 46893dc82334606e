r"""Attention without its diagonal (SparseBERT, Tables 1 and 4).

    python -m experiments.papers.sparsebert.diagonal --scale small

The study pre-trains and fine-tunes models with all pairs, without the diagonal, and without as many
random pairs, which all heads and layers share (Sec. 3.3.3). Further models attend along the six
fixed patterns, with and without the diagonal (Sec. 4.3.1). DAM's structured masks are learned once,
including the diagonal. Before fine-tuning, the diagonal is then added or removed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.papers.figures import points
from experiments.papers.runs import mean_and_spread
from experiments.papers.sparsebert.text_runs import PATTERNS, TextRuns, scores, text_study
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary
from graphattn.patterns import (
    Full,
    Pattern,
    SlidingWindow,
    load_masks,
    randomly_dropped,
    without_diagonal,
)

WITH, WITHOUT, RANDOM = 'with', 'without', 'with, random pairs dropped'
# The paper's sparsity and average score in per cent (Table 1, development sets, and Table 4).
PAPER = {
    ('Full', WITH): (None, 83.8), ('Full', RANDOM): (None, 83.4), ('Full', WITHOUT): (None, 83.9),
    ('Strided', WITH): (70.4, 79.5), ('Strided', WITHOUT): (71.2, 80.2),
    ('Fixed', WITH): (72.7, 79.7), ('Fixed', WITHOUT): (73.4, 79.6),
    ('Longformer', WITH): (88.7, 80.1), ('Longformer', WITHOUT): (89.5, 80.1),
    ('LogSparse', WITH): (89.8, 77.9), ('LogSparse', WITHOUT): (90.6, 77.8),
    ('BigBird', WITH): (93.2, 79.4), ('BigBird', WITHOUT): (93.9, 79.5),
    ('Star', WITH): (96.1, 78.9), ('Star', WITHOUT): (96.9, 78.6),
    ('DAM_s, 1e-4', WITH): (90.4, 80.5), ('DAM_s, 1e-4', WITHOUT): (91.2, 80.9),
    ('DAM_s, 1e-1', WITH): (92.7, 79.3), ('DAM_s, 1e-1', WITHOUT): (93.5, 79.6)}
SEEDS = {'smoke': 2, 'small': 2, 'paper': 3}
CHOSEN = {'smoke': ('Star',), 'small': ('Strided', 'BigBird', 'Star'), 'paper': tuple(PATTERNS)}
WEIGHTS = {'smoke': ('1e-1',), 'small': ('1e-4', '1e-3'), 'paper': ('1e-4', '1e-1')}
LOSS = 'masked tokens, loss'


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train with and without the diagonal, and compare the scores.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`text_study`.
    """
    runs, tasks, seeds = text_study('diagonal', scale, SEEDS[scale], **kwargs)
    rows = _full(runs, tasks, seeds)
    for name in CHOSEN[scale]:
        rows += _pattern(runs, tasks, name)
    for weight in WEIGHTS[scale]:
        rows += _learned(runs, tasks, weight)
    title = ('Attention with and without its diagonal. The paper: without the diagonal, '
             f'attention is as good, at a higher sparsity.\n{runs.about}')
    figure = points(rows, 'attention', [LOSS, 'average', 'paper, average'], title,
                    series='diagonal')
    runs.study.report(rows, figure,
                      f'{runs.about}; {runs.sizes["max_length"]} tokens, 128 in the paper')


def _full(runs: TextRuns, tasks: Sequence[str], seeds: range) -> list[dict]:
    patterns = {WITH: Full(), RANDOM: randomly_dropped(), WITHOUT: without_diagonal(Full())}
    rows = []
    for diagonal, pattern in patterns.items():
        results = [_tuned(runs, runs.fixed(_run('full', diagonal), pattern, seed), tasks, seed)
                   for seed in seeds]
        rows.append(_row('Full', diagonal, _sparsity(runs, [pattern]), results))
    return rows


def _pattern(runs: TextRuns, tasks: Sequence[str], name: str) -> list[dict]:
    pattern = PATTERNS[name]
    rows = []
    for diagonal, kept in ((WITH, pattern), (WITHOUT, without_diagonal(pattern))):
        run = runs.fixed(_run(name.lower(), diagonal), kept)
        rows.append(_row(name, diagonal, _sparsity(runs, [kept]), [_tuned(runs, run, tasks, 0)]))
    return rows


def _learned(runs: TextRuns, tasks: Sequence[str], weight: str) -> list[dict]:
    run = runs.dam('s', weight)
    masks = load_masks(run / 'masks.npz')
    changes: dict[str, Callable[[Pattern], Pattern]] = {
        WITH: lambda mask: mask | SlidingWindow(0), WITHOUT: without_diagonal}
    rows = []
    for diagonal, change in changes.items():
        changed = [change(mask) for mask in masks]
        tuned = {column: score for task in tasks for column, score in scores(
            runs.tuned(run, task, name=f'{diagonal}_diagonal', masks=changed)).items()}
        rows.append(_row(f'DAM_s, {weight}', diagonal, _sparsity(runs, changed), [tuned]))
    return rows


def _run(name: str, diagonal: str) -> str:
    return name + {WITH: '', WITHOUT: '_no_diagonal', RANDOM: '_randomly_dropped'}[diagonal]


def _tuned(runs: TextRuns, run: Path, tasks: Sequence[str], seed: int) -> dict[str, float]:
    """Fine-tune a pre-trained model on each task. Return its loss in pre-training and the scores of
    the tasks, as columns of the table."""
    result = {LOSS: read_summary(run)['mlm_loss']}
    for task in tasks:
        result |= scores(runs.tuned(run, task, seed))
    return result


def _sparsity(runs: TextRuns, patterns: list[Pattern]) -> float:
    """Return which fraction of the pairs is not in the patterns of the heads, in per cent, for a
    sequence of full length."""
    size = runs.sizes['max_length']
    return 100 * (1 - statistics.mean(pattern.build(size, seed=0).density()
                                      for pattern in patterns))


def _row(name: str, diagonal: str, sparsity: float, results: list[dict[str, float]]) -> dict:
    tasks = [column for column in results[0] if column != LOSS]
    average = [statistics.mean(result[task] for task in tasks) for result in results]
    losses = [result[LOSS] for result in results if LOSS in result]
    paper_sparsity, paper_average = PAPER.get((name, diagonal), (None, None))
    return {
        'attention': name, 'diagonal': diagonal, 'sparsity, %': sparsity,
        'paper, sparsity': paper_sparsity,
        **mean_and_spread(LOSS, losses, 'loss'),
        **{task: statistics.mean(result[task] for result in results) for task in tasks},
        **mean_and_spread('average', average), 'paper, average': paper_average}


if __name__ == '__main__':
    run_function(main)
