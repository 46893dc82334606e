"""The study of planted distances, as a smoke test."""

import pytest
import torch

from experiments.papers.sparsebert import planted
from graphattn.graphs.pair_layout import DiagonalLayout
from graphattn.patterns import Mask, load_masks

MASK = Mask(DiagonalLayout(12), '0010010000')


@pytest.mark.slow
def test_the_table_says_what_the_masks_hold(studied, out):
    table = studied('planted')
    assert table['masks'].tolist() == 2 * [planted.LEARNED, planted.FROZEN, planted.RANDOM,
                                           planted.FULL]
    masks = load_masks(out / 'smoke/runs/planted-learned-0/masks.npz')
    density = torch.stack([mask.build(32).to_mask() for mask in masks]).float().mean()
    assert table['sparsity'][0] == pytest.approx(1 - float(density))
    assert table['sparsity'][:2].nunique() == 1 and table['sparsity'][3] == 0
    on = set.union(*planted.distances_on(masks))
    assert table['found'][0] == str(sorted({2, 5} & on))
    assert table['left over'][0] == str(sorted(on - {2, 5}))


def test_random_diagonals_have_the_sparsity_but_not_the_distances():
    drawn = [planted.random_diagonals((MASK, MASK), seed) for seed in range(20)]
    assert len({pair for pair in drawn}) > 15
    for pair in drawn:
        for mask in pair:
            lacking = MASK.build(12).num_edges - mask.build(12).num_edges
            smallest_off = min(10 if d == 0 else 2 * (10 - d)
                               for d, digit in enumerate(mask.values) if digit == '0')
            assert 0 <= lacking < smallest_off  # or that one would have been taken
    assert planted.distances_on((MASK,)) == [{2, 5}]
