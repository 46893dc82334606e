"""Importance of pairs of positions, by soft masks of a pre-training (SparseBERT, Fig. 2)."""

import torch
from torch import Tensor

from experiments.papers.figures import points
from experiments.papers.sparsebert.pruned import Pruned
from experiments.papers.sparsebert.texts import Pretrainings
from experiments.papers.study import Table
from experiments.runs.summary import read_summary

PAPER = {'diagonal': 'least important', 'distance 1': 'most important', 'others': 'all similar',
         '[CLS] as key': 'important', '[SEP] as key': 'important',
         '[CLS] as query': 'important', '[SEP] as query': 'important'}
# In the softmax, P is -c (1 - P) with c = 10, which the paper only calls large. With 10,000, as in
# the authors' code, a query would attend to the key of the highest P alone. The paper averages over
# heads "after normalization", read here as division by the head's mean.
IMPORTANCE = 'P / mean of the head'


def main(texts: Pretrainings) -> Table:
    pruned = Pruned(texts)
    rows, loss = table(pruned.probability), read_summary(pruned.pretrained)
    about = (f'{texts.about}; loss on masked tokens {loss["mlm_loss"]:.2f}, entropy of the '
             f'unigrams {loss["mlm_loss/unigram_entropy"]:.2f}')
    ranked = [{**row, 'pairs': f'{row["pairs"]}: {row["paper"]}' if row['paper'] else row['pairs']}
              for row in sorted(rows, key=lambda row: row['rank'])]
    title = ('Importance of pairs of positions. The paper: neighbours are the most important '
             f'pairs, then [CLS] and [SEP]; the diagonal is the least important.\n{about}')
    return Table(rows, points(ranked, 'pairs', [IMPORTANCE], title),
                 f'{about}\nranks: 1 is the most important of {len(rows)}')


def table(probability: Tensor) -> list[dict]:
    """Return rows with the mean of P ``[heads, n, n]`` over each of :func:`positions`."""
    normalised = probability / probability.mean(dim=(1, 2), keepdim=True)
    rows = []
    for name, is_of in positions(probability.size(1)).items():
        heads = normalised[:, is_of].mean(dim=1)
        rows.append({
            'pairs': name, 'number': int(is_of.sum()),
            'mean P': float(probability[:, is_of].mean()),
            IMPORTANCE: float(heads.mean()), 'rank': 0, 'paper': PAPER.get(name),
            **{f'head {head}': float(value) for head, value in enumerate(heads)}})
    by_importance = sorted(rows, key=lambda row: row[IMPORTANCE], reverse=True)
    for rank, row in enumerate(by_importance, start=1):
        row['rank'] = rank
    return rows


def positions(size: int) -> dict[str, Tensor]:
    """Return disjoint sets of pairs of ``size`` tokens by name, bool ``[query, key]``."""
    query, key = torch.meshgrid(torch.arange(size), torch.arange(size), indexing='ij')
    distance, last = (query - key).abs(), size - 1
    sets = {'diagonal': distance == 0, '[CLS] as key': key == 0, '[SEP] as key': key == last,
            '[CLS] as query': query == 0, '[SEP] as query': query == last,
            **{f'distance {d}': distance == d for d in (1, 2, 3)},
            'distance 4 to 8': (distance > 3) & (distance <= 8),
            'others': torch.ones_like(distance, dtype=torch.bool)}
    is_left = torch.ones_like(distance, dtype=torch.bool)
    for name in sets:  # a pair of several sets is in the first one
        sets[name] = sets[name] & is_left
        is_left &= ~sets[name]
    return {name: pairs for name, pairs in sets.items() if pairs.any()}
