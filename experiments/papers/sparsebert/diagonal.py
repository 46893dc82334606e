"""Attention without its diagonal (SparseBERT, Tables 1 and 4)."""

import statistics
from collections.abc import Sequence

from experiments.papers.figures import points
from experiments.papers.sparsebert.texts import LOSS, PATTERNS, Texts, loss_of
from experiments.papers.study import Table, mean_and_spread
from graphattn import patterns

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
CHOSEN = {'smoke': ('Star',), 'small': ('Strided', 'BigBird', 'Star'), 'paper': tuple(PATTERNS)}
WEIGHTS = {'smoke': ('1e-1',), 'small': ('1e-4', '1e-3'), 'paper': ('1e-4', '1e-1')}
SUFFIX = {WITH: '', WITHOUT: '_no_diagonal', RANDOM: '_randomly_dropped'}  # of runs


def main(texts: Texts) -> Table:
    tasks, seeds = texts.asked(), texts.each(2, 2, 3)
    full = {WITH: patterns.Full(), RANDOM: patterns.randomly_dropped(),
            WITHOUT: patterns.without_diagonal(patterns.Full())}
    rows = [_fixed(texts, tasks, 'Full', diagonal, pattern, seeds)
            for diagonal, pattern in full.items()]
    for name in CHOSEN[texts.scale]:
        of_heads = {WITH: PATTERNS[name], WITHOUT: patterns.without_diagonal(PATTERNS[name])}
        rows += [_fixed(texts, tasks, name, diagonal, pattern, range(1))
                 for diagonal, pattern in of_heads.items()]
    for weight in WEIGHTS[texts.scale]:
        run = texts.dam('s', weight)
        masks = patterns.load_masks(run / 'masks.npz')
        changed = {WITH: [mask | patterns.SlidingWindow(0) for mask in masks],
                   WITHOUT: [patterns.without_diagonal(mask) for mask in masks]}
        rows += [_row(f'DAM_s, {weight}', diagonal, _sparsity(texts, own), [], [
            texts.scores(run, tasks, name=f'{diagonal}_diagonal', masks=own)])
            for diagonal, own in changed.items()]
    title = ('Attention with and without its diagonal. The paper: without the diagonal, '
             f'attention is as good, at a higher sparsity.\n{texts.about}')
    figure = points(rows, 'attention', [LOSS, 'average', 'paper, average'], title,
                    series='diagonal')
    return Table(rows, figure, f'{texts.about}; {texts.length} tokens, 128 in the paper')


def _fixed(texts: Texts, tasks: Sequence[str], name: str, diagonal: str, pattern: patterns.Pattern,
           seeds: range) -> dict:
    runs = [texts.fixed(name.lower() + SUFFIX[diagonal], pattern, seed) for seed in seeds]
    return _row(name, diagonal, _sparsity(texts, [pattern]), [loss_of(run) for run in runs],
                [texts.scores(run, tasks, seed) for run, seed in zip(runs, seeds)])


def _sparsity(texts: Texts, of_heads: list[patterns.Pattern]) -> float:
    return 100 * (1 - statistics.mean(pattern.build(texts.length, seed=0).density()
                                      for pattern in of_heads))


def _row(name: str, diagonal: str, sparsity: float, losses: list[float],
         scores: list[dict[str, float]]) -> dict:
    paper_sparsity, paper_average = PAPER.get((name, diagonal), (None, None))
    return {
        'attention': name, 'diagonal': diagonal, 'sparsity, %': sparsity,
        'paper, sparsity': paper_sparsity, **mean_and_spread(LOSS, losses, 'loss'),
        **{task: statistics.mean(one[task] for one in scores) for task in scores[0]},
        **mean_and_spread('average', [statistics.mean(one.values()) for one in scores]),
        'paper, average': paper_average}
