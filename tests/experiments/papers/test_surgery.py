"""The study of surgery at the scale of smoke tests, and the patterns that it compares."""

from __future__ import annotations

import json

import pytest
import torch

from experiments.papers.ours import surgery
from experiments.papers.study import Study
from graphattn.patterns import Causal, parse

pytest.importorskip('transformers')
pytestmark = pytest.mark.slow


def test_it_compares_all_kinds_of_edges_and_is_not_computed_twice(studied):
    table = studied('surgery')
    assert list(table['edges']) == [surgery.FIT, *surgery.FAMILIES]
    assert (table['true density, %'] <= table['density, %'] + 1e-9).all()
    assert (table['true density, %'] > .6 * table['density, %']).all()
    losses = table[['cut, loss', 'adapted, loss']]
    assert losses.map(lambda loss: 3 < loss < 4.5).all().all()  # log 40 = 3.7


@pytest.mark.parametrize('name', surgery.FAMILIES)
def test_patterns_of_a_family_are_the_densest_within_the_density(name, tmp_path):
    sizes = surgery.SCALES['smoke']
    tokens = torch.zeros(4, 60, dtype=torch.long)
    setting = surgery.Setting(Study('surgery', 'smoke', tmp_path), None, tokens, tokens, sizes)
    pattern, density = setting.of_family(name, .2)
    graph = (parse(pattern) & Causal()).build(60, seed=0, crop=True)
    assert density == pytest.approx(graph.num_edges / (60 * 61 / 2)) and .15 < density <= .2
    assert setting.of_family(name, .001) is None


def test_correlations_are_of_ranks(tmp_path):
    model = surgery._untrained()
    tokens = torch.randint(3, 40, (3, 32), generator=torch.Generator().manual_seed(0))
    measured = surgery.profile(model, [surgery.as_input(tokens)])
    told = surgery.correlations(measured, measured.entropy**3, 32)
    assert told['entropy'] == pytest.approx(1) and all(
        not abs(value) > 1 for value in told.values())
    json.dumps(told)


def test_the_package_is_named_if_it_is_missing():
    with pytest.raises(ValueError, match="'model' must be given, unless the package mgm"):
        surgery._packaged()
