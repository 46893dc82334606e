"""Pruning takes exactly the smallest entries, and exactly so many (SparseBERT, Sec. 3)."""

import pytest
import torch

from graphattn.patterns import LogSparse, prune, prune_at_random, randomly_dropped, without_diagonal

SPARSITIES = [0, 0.1, 0.2, 0.35, 0.5, 0.8, 0.95, 1]


def dense(masks, size: int) -> torch.Tensor:
    return torch.stack([mask.build(size).to_mask() for mask in masks])


@pytest.mark.parametrize('sparsity', SPARSITIES)
def test_the_smallest_entries_go_and_exactly_so_many(sparsity):
    probability = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0))
    kept = dense(prune(probability, sparsity), 12)
    for head in range(3):
        order = probability[head].flatten().sort().values
        num_removed = round(sparsity * 144)
        removed = probability[head][~kept[head]].sort().values
        assert torch.equal(removed, order[:num_removed])


@pytest.mark.parametrize('sparsity', SPARSITIES)
def test_random_pruning_removes_the_same_number(sparsity):
    kept = dense(prune_at_random(3, 12, sparsity, seed=0), 12)
    assert (~kept).sum((1, 2)).tolist() == [round(sparsity * 144)] * 3


def test_the_seed_decides_and_heads_draw_apart():
    first = prune_at_random(2, 12, 0.5, seed=0)
    assert first == prune_at_random(2, 12, 0.5, seed=0) != prune_at_random(2, 12, 0.5, seed=1)
    assert first[0] != first[1]


@pytest.mark.slow
def test_random_pruning_favours_no_entry():
    kept = dense(prune_at_random(1000, 4, 0.25, seed=0), 4).double().mean(0)
    assert float((kept - 0.75).abs().max()) < 5 * (0.75 * 0.25 / 1000) ** 0.5


def test_variants_of_the_diagonal():
    graph = without_diagonal(LogSparse()).build(128)
    assert graph == LogSparse().build(128).without_self_loops()
    assert randomly_dropped().build(128, seed=0).num_edges == 128**2 - 128
    assert randomly_dropped(5).build(128, seed=0).num_edges == 128**2 - 5


@pytest.mark.parametrize('probability', [torch.rand(1, 2, 3), torch.full((1, 2, 2), torch.nan)])
def test_bad_arguments(probability):
    with pytest.raises(ValueError, match="'probability' must"):
        prune(probability, 0.5)
