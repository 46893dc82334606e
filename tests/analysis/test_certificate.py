"""Certificates: reach by matrix powers, measures by dense linear algebra, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.certificate import certificate
from graphattn.patterns import Causal, Full, GlobalTokens, RandomKeys, SlidingWindow

LAYERS = [[SlidingWindow(1).build(12), RandomKeys(1).build(12, seed=3)],
          [GlobalTokens(1).build(12), SlidingWindow(0).build(12)]]
CAUSAL = [[(SlidingWindow(1) & Causal()).build(12)] * 2,
          [(SlidingWindow(4, dilation=2) & Causal()).build(12)] * 2]


@pytest.mark.parametrize('layers, pairs', [(LAYERS, 144), (CAUSAL, 78)], ids=['any', 'causal'])
def test_reach_is_that_of_products_of_masks(layers, pairs):
    found, reach = certificate(layers), np.eye(12, dtype=bool)
    for heads in layers:
        step = np.eye(12, dtype=bool)
        for graph in heads:
            step |= graph.to_mask().numpy()
        reach = step.astype(int) @ reach > 0
    assert found.reached == pytest.approx(reach.sum() / pairs)
    assert (found.layers_to_reach_all is None) == (reach.sum() < pairs)
    assert found.density == pytest.approx(np.mean(found.density_of_head))
    assert found.num_layers == 2 and found.num_heads == 4


def test_a_complete_head_reaches_all_at_once():
    found = certificate([[Full().build(7)], [SlidingWindow(0).build(7)]])
    assert found.layers_to_reach_all == 1 and found.reached == 1 and found.unread == 0
    assert found.hops_of_head.tolist() == [1, 1] and found.reached_of_head.tolist() == [1, 1 / 7]
    assert found.gap_of_head == pytest.approx([7 / 6, 0]) and found.one_way_of_head[0] == 0
    assert found.sigma_of_head == pytest.approx([0, 1])


def test_causal_edges_are_one_way_and_nobody_reads_the_last_token():
    found = certificate([[Causal().build(9)]])
    assert found.layers_to_reach_all == 1 and found.unread == 1
    assert found.one_way_of_head.tolist() == [1]


def test_hops_of_a_window_are_the_length_over_the_radius():
    found = certificate([[SlidingWindow(3).build(40)]])
    assert found.hops_of_head.tolist() == [13]  # 39 steps of 3


def test_one_token_is_certified():
    found = certificate([[SlidingWindow(0).build(1)]])
    assert found.reached == 1 and found.unread == 1


@pytest.mark.parametrize('layers, error, match', [
    ([], ValueError, "'layers' must hold at least one"), ([[]], ValueError, "'layers' must hold"),
    ([[Full().build(3)], [Full().build(4)]], ValueError, r'same tokens, at most 4096 \(got 3, 4\)'),
    ([[Full().build(3, 4)]], ValueError, "'graph' must have as many keys as queries")])
def test_what_is_refused(layers, error, match):
    with pytest.raises(error, match=match):
        certificate(layers)
