"""Clusters by content: their edges, how they are found, and which heads get them."""

from __future__ import annotations

import pytest
import torch

from experiments.surgery.clusters import Clusters, ClusterSource, _clusters
from graphattn.patterns import Full, SlidingWindow

COUNT, CHANNELS, TOKENS = 4, 8, 40


def groups(seed: int, answer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys ``[tokens, 1, channels]`` of four groups each. The queries of a group
    give nearly all weight to the keys of one group."""
    generator = torch.Generator().manual_seed(seed)
    of_query, of_key = torch.randint(COUNT, (2, TOKENS), generator=generator)
    points = 12 * torch.eye(COUNT, CHANNELS)
    noise = .1 * torch.randn(2, TOKENS, CHANNELS, generator=generator)
    return (points[answer[of_query]] + noise[0]).unsqueeze(1), (points[of_key] + noise[1]
                                                                ).unsqueeze(1)


@pytest.mark.parametrize('is_causal', [False, True])
def test_the_clusters_with_the_weight_are_joined_within_the_density(is_causal):
    seen = [groups(seed, torch.tensor([2, 0, 3, 1])) for seed in range(4)]
    found, kept, num_edges = _clusters(seen, 0, .35, COUNT, is_causal), [], 0
    allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    allowed = allowed.tril() if is_causal else allowed
    for query, key in seen:
        logit = query[:, 0] @ key[:, 0].t() * CHANNELS**-.5
        mask = found.mask(query[:, 0], key[:, 0]) & allowed
        kept.append((logit.masked_fill(~allowed, -torch.inf).softmax(1) * mask).sum(1))
        num_edges += int(mask.sum())
    assert torch.cat(kept).mean() > .9  # the first queries have no key of their group before them
    assert num_edges <= .35 * len(seen) * allowed.sum()
    assert not _clusters(seen, 0, .001, COUNT, is_causal).is_edge.any()


def test_a_head_attends_along_its_pattern_and_its_clusters_in_each_sequence():
    answer = torch.arange(COUNT)
    parts = [groups(seed, answer) for seed in range(2)]
    query, key = (torch.cat(part).repeat(1, 2, 1) for part in zip(*parts))
    clusters = Clusters(12 * torch.eye(COUNT, CHANNELS), 12 * torch.eye(COUNT, CHANNELS),
                        torch.eye(COUNT, dtype=torch.bool))
    source = ClusterSource([SlidingWindow(1), Full()], {0: clusters})
    graph = source(query, key, torch.tensor([0, TOKENS, 2 * TOKENS]))
    mask = graph.to_mask()
    window = SlidingWindow(1).build(TOKENS).to_mask()
    for number, (own_query, own_key) in enumerate(parts):
        at = slice(number * TOKENS, (number + 1) * TOKENS)
        assert torch.equal(mask[at, at], clusters.mask(own_query[:, 0], own_key[:, 0]) | window)
    assert graph.num_edges == int(mask[:2 * TOKENS].sum()) + 2 * TOKENS**2
