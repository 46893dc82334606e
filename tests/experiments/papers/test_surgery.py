"""The study of surgery at the scale of smoke tests, and the patterns that it compares."""

from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.papers import runner
from experiments.papers.ours import dense_models, surgery
from experiments.papers.ours.dense_models import Kind, dense_model
from experiments.papers.study import Study
from experiments.sparsify import load_model
from graphattn.hugging_face import Profile
from graphattn.patterns import Causal, Full, parse

pytest.importorskip('transformers')
pytestmark = pytest.mark.slow
SPARSE = [name for name in surgery.FAMILIES if name != surgery.ALL]


def test_it_compares_all_kinds_of_edges_and_is_not_computed_twice(studied):
    table = studied('surgery')
    assert list(table['edges']) == [surgery.FIT, surgery.FIT_ALL, surgery.CLUSTERED, *SPARSE]
    assert (table['true density, %'] <= table['density, %'] + 1e-9).all()
    assert (table['true density, %'] > .6 * table['density, %']).all()
    losses = table[['cut, loss', 'adapted, loss']]
    assert losses.map(lambda loss: 3 < loss < 4.5).all().all()  # log 40 = 3.7


def test_it_trains_a_model_first_whose_edges_have_its_direction(studied, out):
    runner.run('surgery', scale='smoke', trained='modernbert', out=out)
    table = pd.read_csv(out / 'smoke/surgery-modernbert/table.csv')
    assert (table['true density, %'] <= table['density, %'] + 1e-9).all()
    studied('surgery')
    for folder, is_causal in (('surgery', True), ('surgery-modernbert', False)):
        assert Profile.load(out / 'smoke' / folder / 'profile.npz').is_causal == is_causal


@pytest.mark.parametrize('kind', get_args(Kind))
def test_a_model_is_trained_once_on_ids_that_it_knows(kind, out, monkeypatch):
    study = Study('surgery', 'smoke', out)
    folder = dense_model(study, kind)
    monkeypatch.delattr(dense_models, 'adapt')
    assert dense_model(study, kind) == folder
    ids = np.load(folder / 'ids.npy')
    assert len(ids) > dense_models.HELD_OUT and ids.min() >= 0
    assert ids.max() < load_model(folder).config.vocab_size


@pytest.mark.parametrize('is_causal', [True, False])
@pytest.mark.parametrize('name', SPARSE)
def test_patterns_of_a_family_are_the_densest_within_the_density(name, is_causal):
    patterns, lengths = surgery.FAMILIES[name], [60, 60]
    pattern, density = surgery.densest(patterns, .2, lengths, is_causal)
    allowed, pairs = (Causal(), 60 * 61 / 2) if is_causal else (Full(), 60 * 60)
    graph = (parse(pattern) & allowed).build(60, seed=0, crop=True)
    assert density == pytest.approx(graph.num_edges / pairs) and .15 < density <= .2
    assert surgery.densest(patterns, .001, lengths, is_causal) is None


def test_correlations_are_of_ranks():
    model = surgery._untrained()
    tokens = torch.randint(3, 40, (3, 32), generator=torch.Generator().manual_seed(0))
    measured = surgery.profile(model, [surgery.as_input(tokens)])
    told = surgery.correlations(measured, measured.entropy**3, 32)
    assert told['entropy'] == pytest.approx(1) and all(
        not abs(value) > 1 for value in told.values())


def test_the_package_is_named_if_it_is_missing():
    with pytest.raises(ValueError, match="'trained' must be given, unless the package mgm"):
        surgery._packaged()
