"""Heads attend along clusters by content if that costs less loss."""

from __future__ import annotations

from functools import partial

import pytest

from experiments.surgery import loss_of, mean_loss
from experiments.surgery.clusters import with_clusters
from graphattn.hugging_face import attached, fit, profile
from tests.experiments.surgery.test_surgery import gpt2, ids

pytest.importorskip('transformers')


@pytest.mark.slow
@pytest.mark.parametrize('sign', [1, -1])
def test_clusters_are_chosen_where_they_cost_less_loss(sign):
    model, tokens = gpt2(), ids(8, padded=False)
    for parameter in model.transformer.parameters():
        parameter.data.mul_(4)
    names = ['SlidingWindow(radius=0)', 'SlidingWindow(radius=3)', '3 keys of 6 clusters',
             '2 keys of 6 clusters', '9 keys of 6 clusters']
    measured = profile(model, [tokens], patterns=names)
    loss = partial(mean_loss, tokens=tokens, loss=loss_of(model), batch_size=8)
    chosen = fit(measured.among(names[:2]), .3)
    changed = with_clusters(model, chosen, measured, lambda model: sign * loss(model))
    for row in range(4):
        options, losses = [chosen.pattern(row), measured.pattern(row, 2)], []
        for along in options:
            with attached(model, along, layers=[int(measured.layer[row])],
                          heads=[int(measured.head[row])]):
                losses.append(sign * loss(model))
        is_tried = chosen.error[row] > .1 and (
            measured.pattern_edges[row, 2] <= chosen.density[row] * measured.keys[row])
        is_replaced = is_tried and losses[1] < losses[0]
        assert (row in changed.clusters) == is_replaced
        expected = (names[2], measured.pattern_error[row, 2]) if is_replaced else (
            chosen.patterns[row], chosen.error[row])
        assert (changed.patterns[row], changed.error[row]) == expected
    assert (changed.density <= chosen.density + 1e-9).all()
