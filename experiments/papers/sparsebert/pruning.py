"""Pruning of pairs by learned importance, or at random (SparseBERT, Fig. 3)."""


from experiments.papers.figures import curves
from experiments.papers.sparsebert.pruned import Pruned, better
from experiments.papers.sparsebert.texts import LOSS, Texts
from experiments.papers.study import Table, mean_and_spread

PAPER_PERCENT = tuple(range(10, 100, 10))
PERCENT = {'smoke': (50, 90), 'small': (30, 60, 90), 'paper': PAPER_PERCENT}
# The comparison favours P: the model was trained with P and never with the random pairs.
RANDOM_MASKS = 3  # number of random masks whose results are averaged


def main(texts: Texts) -> Table:
    tasks, seeds = texts.asked(), texts.each(1, 1, 3)
    pruned = Pruned(texts)
    rows = [_row(LOSS, share, [pruned.loss(pruned.masks(share))],
                 [pruned.loss(pruned.masks(share, seed)) for seed in range(RANDOM_MASKS)])
            for share in (0, *PAPER_PERCENT)]
    for task in tasks:
        own = []
        for share in (0, *PERCENT[texts.scale]):
            by_p = [pruned.tuned(task, seed, share) for seed in seeds]
            # Without pruning, both ways to prune are the same.
            at_random = [pruned.tuned(task, seed, share, seed) for seed in seeds] if share else by_p
            own += [_row(column, share, [score[column] for score in by_p],
                         [score[column] for score in at_random]) for column in by_p[0]]
        rows += sorted(own, key=lambda row: row['task'])
    compared = [row['better here'] for row in rows if row['better in the paper'] == 'P']
    title = ('Pruning by learned importance P, and at random. The paper: P is better on every '
             f'task.\n{texts.about}')
    figure = curves(rows, 'sparsity, %', ['by P', 'at random'], title, panel='task',
                    ylabel='loss, or score in %')
    return Table([*rows, {
        'task': 'all', 'better here': f'P in {compared.count("P")} of {len(compared)}',
        'better in the paper': 'P in all'}], figure, texts.about)


def _row(task: str, percent: int, by_p: list[float], at_random: list[float]) -> dict:
    return {'task': task, 'sparsity, %': percent,
            **mean_and_spread('by P', by_p), **mean_and_spread('at random', at_random),
            'better here': better(task, {'P': by_p, 'random': at_random}) if percent else None,
            'better in the paper': 'P' if percent and task != LOSS else None}
