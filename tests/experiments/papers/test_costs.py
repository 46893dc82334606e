"""The study of costs at the scale of smoke tests, and what its cases are."""

import pandas as pd
import pytest
import torch

from experiments.papers import runner
from experiments.papers.sbm_transformer import costs
from experiments.papers.sbm_transformer.costs import EDGES, FORMED, FUSED, POISSON, SAMPLED, Case


def test_both_full_attentions_are_one():
    formed, fused = (Case(name, 40).attend() for name in (FORMED, FUSED))
    fused[0].load_state_dict(formed[0].state_dict())
    torch.testing.assert_close(formed[1](), fused[1]())


@pytest.mark.parametrize('name', [SAMPLED, POISSON, EDGES])
def test_block_models_are_of_the_density_that_is_asked_for(name):
    torch.manual_seed(0)
    assert Case(name, 300, 0.4).graph().density() == pytest.approx(0.4, abs=0.01)


def test_crossing():
    rows = [{'density': density, 'ms': time} for density, time in ((0.1, 2.), (0.2, 4.), (0.4, 8.))]
    assert costs.crossing(rows, 'ms', 6.) == '30%'
    assert costs.crossing(rows, 'ms', 9.) == 'above 40%'
    assert costs.crossing(rows, 'ms', 1.) == 'below 10.0%'


@pytest.mark.slow
def test_study(out, monkeypatch, measured_in_forks):
    monkeypatch.setitem(costs.TASKS, 'smoke', [('ListOps', 128)])
    runner.run('costs', scale='smoke', out=out)
    folder = out / 'smoke' / 'costs'
    rows = pd.read_csv(folder / 'table.csv')
    assert (folder / 'figure.png').stat().st_size > 10_000
    assert set(rows['attention']) == {*costs.CHOSEN['smoke'], SAMPLED, POISSON, EDGES}
    assert (rows['tokens'] == 128).all() and (rows['infer ms'] > 0).all()
    trained = rows[(rows['attention'] == SAMPLED) & rows['paper, memory'].notna()]
    assert trained['paper, memory'].tolist() == [costs.PAPER_MEMORY[SAMPLED]['ListOps']]
    assert len(pd.read_csv(folder / 'crossings.csv')) == 6
