"""Fixed patterns and learned masks at their sparsities (SparseBERT, Table 3 and Fig. 4)."""

import statistics
from itertools import product

import torch
from torch import Tensor

from experiments.papers.figures import curves
from experiments.papers.sparsebert.texts import LOSS, PATTERNS, Texts, loss_of
from experiments.papers.study import Table, mean_and_spread
from graphattn.patterns import load_masks

# The paper's sparsity and average score in per cent (Table 3).
PAPER = {
    'Strided': (70.4, 79.5), 'Fixed': (72.7, 79.7), 'Longformer': (88.7, 80.1),
    'LogSparse': (89.8, 77.9), 'BigBird': (93.2, 79.4), 'Star': (96.1, 78.9),
    'DAM_u, 1e-4': (78.9, 82.0), 'DAM_u, 1e-3': (79.2, 81.6), 'DAM_u, 1e-2': (79.8, 81.3),
    'DAM_u, 1e-1': (85.8, 80.8), 'DAM_s, 1e-4': (91.2, 80.9), 'DAM_s, 1e-3': (91.6, 80.3),
    'DAM_s, 1e-2': (91.7, 79.8), 'DAM_s, 1e-1': (93.5, 79.6)}
CHOSEN = {'smoke': ('Star',), 'small': tuple(PATTERNS), 'paper': tuple(PATTERNS)}
DRAWN = {LOSS: 'loss on masked tokens', 'average': 'average score, %',
         'paper, average': 'in the paper: average score on GLUE, %'}


def main(texts: Texts) -> Table:
    tasks, seeds = texts.asked(), texts.each(1, 1, 3)
    trained = {name: (texts.fixed(name.lower(), PATTERNS[name]), [PATTERNS[name]])
               for name in CHOSEN[texts.scale]}
    # Lambda weights a sum over heads and pairs (Eq. 7), the task's gradient grows, and Adam
    # normalises both. So the sparsity for a lambda depends on the numbers of steps and tokens.
    for kind, weight in product('us', texts.lambdas('1e-4', '1e-1')):
        run = texts.dam(kind, weight)
        trained[f'DAM_{kind}, {weight}'] = run, load_masks(run / 'masks.npz')
    rows = []
    for name, (run, heads) in trained.items():
        mask = torch.stack([pattern.build(texts.length, seed=0).to_mask() for pattern in heads])
        scores = [texts.scores(run, tasks, seed) for seed in seeds]
        sparsity, average = PAPER.get(name, (None, None))
        rows.append({
            'mask': name, 'sparsity, %': _percent(1 - mask.float().mean()),
            'paper, sparsity': sparsity, **_kept(mask[:, 1:-1, 1:-1].float()), LOSS: loss_of(run),
            **{task: statistics.mean(one[task] for one in scores) for task in scores[0]},
            **mean_and_spread('average', [statistics.mean(one.values()) for one in scores]),
            'paper, average': average})
    drawn = [{'score': title, 'value': row[column], 'masks':
              'fixed' if row['mask'] in PATTERNS else row['mask'][:5], 'sparsity, %':
              row['paper, sparsity' if column.startswith('paper') else 'sparsity, %']}
             for column, title in DRAWN.items() for row in rows if row[column] is not None]
    title = ('Masks at their sparsities. The paper, on GLUE: learned masks are better than fixed '
             f'masks in almost all cases.\n{texts.about}')
    return Table(rows, curves(drawn, 'sparsity, %', ['value'], title, panel='score',
                              series='masks', ylabel=''),
                 f'{texts.about}; {texts.length} tokens, 128 in the paper')


def _kept(inside: Tensor) -> dict[str, float]:
    """Return how much of the diagonal and of its neighbours masks keep, ``[heads, n, n]``."""
    neighbours = [inside.diagonal(offset, 1, 2).mean() for offset in (-1, 1)]
    return {'diagonal, %': _percent(inside.diagonal(0, 1, 2).mean()),
            'neighbours, %': _percent(sum(neighbours) / 2)}


def _percent(share: Tensor) -> float:
    return 100 * float(share)
