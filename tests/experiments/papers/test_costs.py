"""The study of costs at the scale of smoke tests, and what its cases are."""

import json

import pandas as pd
import pytest
import torch

from experiments.benchmarks import flops
from experiments.papers.sbm_transformer import costs
from experiments.papers.sbm_transformer.cost_cases import (
    CLUSTERS,
    EDGES,
    FORMED,
    FUSED,
    HEADS,
    POISSON,
    RANKS,
    SAMPLED,
    STEPS,
    WIDTH,
    Case,
)
from experiments.papers.sbm_transformer.cost_classes import TABLE_6, growths

# Reformer has more hashes where there are more chunks; Nystromformer's products are taken in an
# order that takes no n k^2.
ELSEWHERE = {SAMPLED, POISSON, 'Reformer', 'Nystromformer'}


def test_both_full_attentions_are_one():
    formed, fused = (Case(name, 40).attend() for name in (FORMED, FUSED))
    fused[0].load_state_dict(formed[0].state_dict())
    torch.testing.assert_close(formed[1](), fused[1]())


@pytest.mark.parametrize('name', [SAMPLED, POISSON, EDGES])
def test_block_models_are_of_the_density_that_is_asked_for(name):
    torch.manual_seed(0)
    assert Case(name, 300, 0.4).graph().density() == pytest.approx(0.4, abs=0.01)


def test_edges_alone_are_those_of_a_block_model():
    torch.manual_seed(0)
    case = Case(EDGES, 300, 0.1)
    assert sum(case.steps().values()) == pytest.approx(4 * 0.1 * 300**2 * WIDTH, rel=0.1)
    sampled = Case(SAMPLED, 300, 0.1)
    trains = sampled.steps(trains=True)
    assert set(trains) - set(sampled.steps()) == {'probability of edges'}


@pytest.mark.parametrize('name', [name for name in STEPS if name != FUSED])
def test_operations_are_what_torch_counts(name):
    case = Case(name, 128)
    expected = HEADS * sum(case.steps().values()) / 1e6
    assert costs.counted(case) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize('symbol', ['n', 'd', 'k'])
@pytest.mark.parametrize('name', [name for name in TABLE_6 if name not in ELSEWHERE])
def test_operations_grow_as_in_table_6(name, symbol):
    """At the length where the terms without n have become small."""
    grown = growths(name, 2**17, WIDTH, RANKS.get(name, CLUSTERS))
    assert grown[f'FLOPs, 2{symbol}'] == pytest.approx(grown[f'Table 6, 2{symbol}'], rel=0.1)


def test_table_6_lacks_the_mixed_queries_of_block_models():
    """n k^2 of them, for which Table 5 has no step (the clusters' own product is k^2 d)."""
    grown = growths(POISSON, 2048, WIDTH, CLUSTERS)
    assert grown['FLOPs, 2d'] == pytest.approx(grown['Table 6, 2d'], rel=0.25)
    many_clusters = growths(POISSON, 2048, WIDTH, 8 * CLUSTERS)
    assert many_clusters['FLOPs, 2k'] > many_clusters['Table 6, 2k'] + 1


def test_crossing():
    rows = [{'density': density, 'ms': time} for density, time in ((0.1, 2.), (0.2, 4.), (0.4, 8.))]
    assert costs.crossing(rows, 'ms', 6.) == '30%'
    assert costs.crossing(rows, 'ms', 9.) == 'above 40%'
    assert costs.crossing(rows, 'ms', 1.) == 'below 10.0%'


@pytest.mark.slow
def test_study(out, monkeypatch, measured_in_forks):
    monkeypatch.setitem(costs.TASKS, 'smoke', [('ListOps', 128)])
    costs.main('smoke', out)
    folder = out / 'smoke' / 'costs'
    rows = pd.read_csv(folder / 'table.csv')
    assert (folder / 'figure.png').stat().st_size > 10_000
    for task, n in costs.TASKS['smoke']:
        own = rows[rows['task'] == task]
        assert set(own['attention']) == {*costs.CHOSEN['smoke'], SAMPLED, POISSON, EDGES}
        assert (own['tokens'] == n).all()
        full = own.set_index('attention').loc[FORMED]
        assert full['MFLOPs'] == 4 * n**2 * WIDTH * HEADS / 1e6 == full['counted by torch']
        trained = own[(own['attention'] == SAMPLED) & own['paper, FLOPs'].notna()]
        assert trained['paper, FLOPs'].tolist() == [costs.PAPER_FLOPS[SAMPLED][task]]
    steps = pd.read_csv(folder / 'steps.csv')
    assert steps['% of inference'].sum() == pytest.approx(100.)
    assert len(pd.read_csv(folder / 'crossings.csv')) == 6
    classes = pd.read_csv(folder / 'classes.csv').set_index('attention')
    assert classes.loc[FORMED, 'FLOPs, 2n'] == classes.loc[FORMED, 'Table 6, 2n'] == 4

    measured = json.loads((folder / 'measured' / '128.json').read_text())
    monkeypatch.setattr(costs, 'measure', lambda *args: pytest.fail('measured again'))
    costs.main('smoke', out)  # what was measured is taken as it is
    monkeypatch.setattr(costs, 'measure', lambda *args: measured['rows'])
    (folder / 'measured' / '128.json').write_text(json.dumps(measured | {'asked': {}}))
    costs.main('smoke', out)
    assert json.loads((folder / 'measured' / '128.json').read_text()) == measured


def test_drawing_takes_what_it_says():
    """The share of the operations that go before there is a graph."""
    steps = Case(SAMPLED, 256, 0.02).steps()
    attended = steps['logits'] + steps['sums']
    assert attended == pytest.approx(sum(flops.along_edges(
        Case(SAMPLED, 256, 0.02).graph().num_edges / HEADS, WIDTH).values()))
