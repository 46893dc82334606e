r"""Fixed patterns and learned masks at their sparsities (SparseBERT, Table 3 and Fig. 4 to 6).

    python -m experiments.papers.sparsebert.masks --scale small

The study compares six patterns, with the paper's sparsities at 128 tokens, and DAM's unstructured
and structured masks for four lambdas. Each model is pre-trained and then fine-tuned. In each step
of the pre-training, a learned mask is sampled. After it, the mask is frozen by threshold.

Lambda weights a sum over heads and pairs (Eq. 7). The gradient of the task, on the other side,
grows during training, and Adam normalises any gradient to a step of about the learning rate. The
sparsity for a lambda therefore depends on the numbers of steps, tokens and heads. The table lists
the sparsity that was reached, and the small scale has smaller lambdas.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.papers.figures import panels_of, plot
from experiments.papers.runs import mean_and_spread
from experiments.papers.sparsebert.text_runs import (
    LAMBDAS,
    PATTERNS,
    SMALL_LAMBDAS,
    TextRuns,
    scores,
    text_study,
)
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary
from graphattn.patterns import Pattern, load_masks

# The paper's sparsity and average score in per cent (Table 3).
PAPER = {
    'Strided': (70.4, 79.5), 'Fixed': (72.7, 79.7), 'Longformer': (88.7, 80.1),
    'LogSparse': (89.8, 77.9), 'BigBird': (93.2, 79.4), 'Star': (96.1, 78.9),
    'DAM_u, 1e-4': (78.9, 82.0), 'DAM_u, 1e-3': (79.2, 81.6), 'DAM_u, 1e-2': (79.8, 81.3),
    'DAM_u, 1e-1': (85.8, 80.8), 'DAM_s, 1e-4': (91.2, 80.9), 'DAM_s, 1e-3': (91.6, 80.3),
    'DAM_s, 1e-2': (91.7, 79.8), 'DAM_s, 1e-1': (93.5, 79.6)}
CHOSEN = {'smoke': ('Star',), 'small': tuple(PATTERNS), 'paper': tuple(PATTERNS)}
WEIGHTS = {'smoke': ('1e-4', '1e-1'), 'small': SMALL_LAMBDAS, 'paper': LAMBDAS}
SEEDS = {'smoke': 1, 'small': 1, 'paper': 3}
LOSS = 'masked tokens, loss'
# the lambda of the drawn masks, as in Fig. 5 and 6
DRAWN = {'smoke': '1e-1', 'small': '1e-3', 'paper': '1e-1'}


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train along fixed patterns and learned masks, and compare the scores.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`text_study`.
    """
    runs, tasks, seeds = text_study('masks', scale, SEEDS[scale], **kwargs)
    size = runs.sizes['max_length']
    rows, pictures = [], {}
    for name in CHOSEN[scale]:
        run, mask = runs.fixed(name.lower(), PATTERNS[name]), _dense((PATTERNS[name],), size)
        rows.append(_row(runs, name, run, mask, tasks, seeds))
    for kind, weight in product(('u', 's'), WEIGHTS[scale]):
        run, name = runs.dam(kind, weight), f'DAM_{kind}, {weight}'
        mask = _dense(load_masks(run / 'masks.npz'), size)
        rows.append(_row(runs, name, run, mask, tasks, seeds))
        if weight == DRAWN[scale]:
            pictures[name] = mask
    about = f'{runs.about}; {size} tokens, 128 in the paper'
    heads = {f'mask_{name[:5]}': _heads(name, mask) for name, mask in pictures.items()}
    runs.study.report(rows, _draw(rows, runs.about), about, **heads)


def _dense(heads: Sequence[Pattern], size: int) -> Tensor:
    """Return the mask of each head for a sequence of full length, bool ``[heads, n, n]``."""
    return torch.stack([pattern.build(size, seed=0).to_mask() for pattern in heads])


def _row(runs: TextRuns, name: str, run: Path, mask: Tensor, tasks: Sequence[str],
         seeds: range) -> dict:
    results = [{column: score for task in tasks
                for column, score in scores(runs.tuned(run, task, seed)).items()}
               for seed in seeds]
    average = [statistics.mean(result.values()) for result in results]
    paper_sparsity, paper_average = PAPER.get(name, (None, None))
    inside = mask[:, 1:-1, 1:-1].float()
    neighbours = [inside.diagonal(offset, 1, 2).mean() for offset in (-1, 1)]
    return {
        'mask': name, 'sparsity, %': _percent(1 - mask.float().mean()),
        'paper, sparsity': paper_sparsity,
        'diagonal, %': _percent(inside.diagonal(0, 1, 2).mean()),
        'neighbours, %': _percent(sum(neighbours) / 2),
        LOSS: read_summary(run)['mlm_loss'],
        **{task: statistics.mean(result[task] for result in results) for task in results[0]},
        **mean_and_spread('average', average), 'paper, average': paper_average}


def _percent(share: Tensor) -> float:
    return 100 * float(share)


def _draw(rows: list[dict], about: str) -> Figure:
    titles = {LOSS: 'loss on masked tokens', 'average': 'average score, %',
              'paper, average': 'in the paper: average score on GLUE, %'}
    figure, panels = panels_of(list(titles.values()),
                               'Masks at their sparsities. The paper, on GLUE: learned masks are '
                               f'better than fixed masks in almost all cases.\n{about}')
    for axes, column in zip(panels, titles):
        x = 'paper, sparsity' if column.startswith('paper') else 'sparsity, %'
        # labels by point, because several masks may be at the same point
        labels = defaultdict(list)
        for kind in ('fixed', 'DAM_u', 'DAM_s'):
            own = [row for row in rows if row[column] is not None
                   and kind == ('fixed' if row['mask'] in PATTERNS else row['mask'][:5])]
            plot(axes, own, x, column, label=kind, ls='none' if kind == 'fixed' else '-')
            for row in own:
                labels[row[x], row[column]].append(row['mask'].split(', ')[-1])
        for point, names in labels.items():
            axes.annotate(', '.join(names), point, fontsize='small', xytext=(4, 3),
                          textcoords='offset points')
        axes.set_xlabel('sparsity, %')
        axes.margins(0.12)
        axes.legend()
    return figure


def _heads(name: str, mask: Tensor) -> Figure:
    """Draw the mask of each head, with queries as rows and keys as columns."""
    figure, panels = panels_of([f'head {head}' for head in range(len(mask))],
                               f'{name}: query over key; dark pairs attend', (2., 2.6))
    for axes, pairs in zip(panels, mask):
        axes.imshow(pairs.numpy(), vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
    return figure


if __name__ == '__main__':
    run_function(main)
