r"""Importance of pairs of positions, by soft masks that are learned in pre-training (SparseBERT,
Fig. 2).

    python -m experiments.papers.sparsebert.importance --scale small

Pre-training learns a mask P for each head, which all layers share (Sec. 3.1). The mask enters the
softmax as -c (1 - P), with c = 10. The paper only calls c large. With c = 10,000, as in the
authors' code, each query would attend only to the key of the highest P, even if this P is higher by
very little. The paper averages P over heads "after normalization", which is read here as division
by the head's mean. Every entry of P starts at 1/2.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.papers.figures import panels_of, points
from experiments.papers.sparsebert.pruned_runs import PrunedRuns
from experiments.papers.sparsebert.text_runs import TextRuns
from experiments.papers.study import ScaleName, Study
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary

PAPER = {'diagonal': 'least important', 'distance 1': 'most important', 'others': 'all similar',
         '[CLS] as key': 'important', '[SEP] as key': 'important',
         '[CLS] as query': 'important', '[SEP] as query': 'important'}
FURTHEST = 16  # distance in the figure


def main(
    scale: ScaleName = 'small',
    corpus: str | None = None,
    out: Path = Path('runs/studies'),
) -> None:
    """Learn soft masks in pre-training, and report the importance of pairs.

    Args:
        scale: Scale of the study: smoke, small or paper.
        corpus: The corpus of the pre-training. If omitted, the documentation of the installed
            Python.
        out: The folder of all studies.
    """
    study = Study('importance', scale, out)
    runs = TextRuns(study, corpus)
    pruned = PrunedRuns(runs)
    rows = table(pruned.probability)
    loss = read_summary(pruned.pretrained)
    about = (f'{runs.about.split(";")[0]}; loss on masked tokens {loss["mlm_loss"]:.2f}, entropy '
             f'of the unigrams {loss["mlm_loss/unigram_entropy"]:.2f}')
    study.report(rows, _draw(pruned.probability, about),
                 f'{about}\nranks: 1 is the most important of {len(rows)}', ranks=_draw_ranks(rows))


def table(probability: Tensor) -> list[dict]:
    """Return rows with the mean of P over each of :func:`positions`. The set with the highest mean
    is marked.

    Args:
        probability (Tensor): P, ``[heads, n, n]``.
    """
    normalised = _normalised(probability)
    rows = []
    for name, is_of in positions(probability.size(1)).items():
        heads = normalised[:, is_of].mean(dim=1)
        rows.append({
            'pairs': name, 'number': int(is_of.sum()),
            'mean P': float(probability[:, is_of].mean()),
            'P / mean of the head': float(heads.mean()), 'rank': 0, 'paper': PAPER.get(name),
            **{f'head {head}': float(value) for head, value in enumerate(heads)}})
    by_importance = sorted(rows, key=lambda row: row['P / mean of the head'], reverse=True)
    for rank, row in enumerate(by_importance, start=1):
        row['rank'] = rank
    return rows


def positions(size: int) -> dict[str, Tensor]:
    """Return the paper's disjoint sets of pairs of positions by name, each a bool tensor
    ``[query, key]`` of ``size`` tokens.

    A pair that belongs to several of the paper's sets is in the first of these sets only.
    """
    query, key = torch.meshgrid(torch.arange(size), torch.arange(size), indexing='ij')
    distance, last = (query - key).abs(), size - 1
    sets = {'diagonal': distance == 0, '[CLS] as key': key == 0, '[SEP] as key': key == last,
            '[CLS] as query': query == 0, '[SEP] as query': query == last,
            **{f'distance {d}': distance == d for d in (1, 2, 3)},
            'distance 4 to 8': (distance > 3) & (distance <= 8),
            'others': torch.ones_like(distance, dtype=torch.bool)}
    is_left = torch.ones_like(distance, dtype=torch.bool)
    for name in sets:
        sets[name] = sets[name] & is_left
        is_left &= ~sets[name]
    return {name: pairs for name, pairs in sets.items() if pairs.any()}


def _normalised(probability: Tensor) -> Tensor:
    return probability / probability.mean(dim=(1, 2), keepdim=True)


def _draw(probability: Tensor, about: str) -> Figure:
    """Draw the mean of P over heads, and its mean by distance, for which the first and the last
    token are left out."""
    normalised = _normalised(probability)
    average, inside = normalised.mean(dim=0), normalised[:, 1:-1, 1:-1]
    figure, (matrix, offsets) = panels_of(
        ['P / mean of the head, averaged over heads', 'by distance, without first and last token'],
        'Importance of pairs of positions. The paper: neighbours are the most important pairs, '
        f'then [CLS] and [SEP]; the diagonal is the least important.\n{about}', (5., 5.))
    low, high = average.flatten().quantile(torch.tensor([0.01, 0.99])).tolist()
    picture = matrix.imshow(average.numpy(), vmin=low, vmax=high)
    figure.colorbar(picture, ax=matrix, shrink=0.8, extend='both')
    matrix.set(xlabel='key', ylabel='query')
    matrix.grid(visible=False)
    furthest = min(FURTHEST, inside.size(1) - 1)
    at = range(-furthest, furthest + 1)
    by_offset = torch.stack([inside.diagonal(offset, 1, 2).mean(dim=1) for offset in at])
    offsets.plot(at, by_offset.numpy(), color='0.7', lw=1)
    offsets.plot(at, by_offset.mean(dim=1).numpy(), color='C0', marker='.', label='all heads')
    offsets.set_xlabel('key - query')
    offsets.legend()
    return figure


def _draw_ranks(rows: list[dict]) -> Figure:
    ranked = [{**row, 'pairs': f'{row["pairs"]}: {row["paper"]}' if row['paper'] else row['pairs']}
              for row in sorted(rows, key=lambda row: row['rank'])]
    return points(ranked, 'pairs', ['P / mean of the head'], 'By rank, with the claims of the '
                                                             'paper')


if __name__ == '__main__':
    run_function(main)
