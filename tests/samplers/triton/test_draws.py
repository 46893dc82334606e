"""Draws of GPUs without one: Triton's interpreter computes them in numpy."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg
from tests.samplers import test_contract as contract

triton = pytest.importorskip('triton', reason='samplers for GPUs need triton')

import triton.language as tl  # noqa: E402
from triton.runtime.interpreter import TensorHandle  # noqa: E402

from graphattn.ops.sample.triton import draw, draws, thin  # noqa: E402
from tests.ops.triton.as_on_gpus import as_on_gpus  # noqa: E402

pytestmark = [pytest.mark.filterwarnings('ignore::RuntimeWarning'),  # of numpy, for what is masked
              pytest.mark.skipif(not triton.knobs.runtime.interpret,
                                 reason='TRITON_INTERPRET=1 is not set')]


class Way(NamedTuple):
    """A sampler for GPUs that takes models of a CPU, as the contract of samplers calls it."""

    sampler: str
    method: str

    def __call__(self, model, generator=None):
        sample = draw if self.sampler == 'sample_fastrg' else thin
        return sample(model, generator, by_name=True)

    def skip_unless_it_serves(self, model):
        contract.Way.skip_unless_it_serves(self, model)


WAYS = {'fastrg': Way('sample_fastrg', 'compiled'), 'thinned': Way('sample_bernoulli', 'thin')}
every_way = pytest.mark.parametrize('sample', WAYS.values(), ids=WAYS)


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """Sets what a program holds; the interpreter takes its time for each, whatever it holds, and
    sorts by Python's loops, which numpy takes over."""
    def sort(x, dim):
        return tl.core.tensor(TensorHandle(np.sort(x.handle.data, axis=dim), x.handle.dtype),
                              x.type)

    def of(num_draws, rows=2**10, max_expected=64):
        for name, value in (('_DRAWS_OF_A_PROGRAM', num_draws), ('_ROWS', rows),
                            ('MAX_EXPECTED', max_expected), ('_KEYS', 256)):
            monkeypatch.setattr(draws, name, value)

    monkeypatch.setattr(tl, 'sort', sort)
    of(2**14)
    with as_on_gpus():
        yield of


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# The distribution #############################################################################


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(contract.MODELS.keys() - {
    'anti-diagonal', 'one query', 'vanishing queries', 'rectangular', 'ragged', 'rank one',
    'exploration', 'subnormal keys', 'two heads', 'float64'}))
@every_way
def test_cells_follow_the_distribution(sample, name):
    """The others differ in shapes, or in numbers that those of float32 and below bounds have. One
    is drawn more often, and shows smaller deviations."""
    copies = 1500 if name == 'dense' else 400
    assert contract.follows(*contract.draw_many(sample, contract.MODELS[name], copies))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['dense', 'below bounds'])
@every_way
def test_cells_are_independent(sample, name):
    contract.test_cells_are_independent(sample, contract.MODELS[name], copies=500)


@pytest.mark.slow
@every_way
def test_rows_that_draw_often_are_cut(sample, programs):
    """Into pieces of a few keys, of segments that are ragged."""
    model = contract.random_model(40, 50, 4, density=0.2, exploration=0.01,
                                  query_ptr=torch.tensor([0, 15, 15, 40]),
                                  key_ptr=torch.tensor([0, 20, 29, 50]))
    programs(2**14, max_expected=3)
    drawn = draws.Draws(model, generator(), thins=sample.method == 'thin')
    assert drawn._fit() and drawn.pieces > 2
    assert contract.follows(*contract.draw_many(sample, model, copies=12))


@pytest.mark.slow
@every_way
def test_no_cell_of_probability_zero_and_no_pair_of_other_clusters(sample):
    contract.test_a_cell_of_probability_zero_is_never_drawn(sample)
    contract.test_clusters_of_query_and_key_stay_paired(sample)


# Segments and programs ##############################################################


@pytest.mark.slow
@every_way
def test_the_graph_does_not_depend_on_programs(sample, programs, monkeypatch):
    """Nor on who sorts."""
    model = contract.random_model(9, 60, 5, density=0.05)
    graph = sample(model, generator())
    programs(64, rows=1)
    assert graph == sample(model, generator()) != sample(model, generator(1))
    monkeypatch.undo()
    monkeypatch.setattr(draws, '_DRAWS_OF_A_PROGRAM', 512)
    assert graph == sample(model, generator())


@every_way
@pytest.mark.parametrize('num_queries, num_keys', [(0, 0), (0, 3), (3, 0)])
def test_no_edge_is_possible(sample, num_queries, num_keys):
    model = FactorModel(torch.ones(num_queries, 2), 0.1 * torch.eye(2), torch.ones(num_keys, 2))
    graph = sample(model, generator()).validate()
    assert (graph.num_queries, graph.num_keys, graph.num_edges) == (num_queries, num_keys, 0)


@pytest.mark.parametrize('num_clusters', [1, 33, 300])
def test_any_number_of_clusters(num_clusters):
    member = torch.eye(num_clusters)[torch.arange(40) % num_clusters]
    mixing = torch.rand(num_clusters, num_clusters).round()
    certain = FactorModel(member, mixing, member).expectation().bool()
    model = FactorModel(member, 0.9 / num_clusters * mixing, member)
    assert not (thin(model, generator(), by_name=True).to_mask() & ~certain).any()
    always = draw(FactorModel(member, 50 * mixing, member), generator(), by_name=True)
    assert torch.equal(always.to_mask(), certain)


# Which way, and refused ##############################################################


def few() -> FactorModel:
    return FactorModel(torch.full((40, 2), 0.01), torch.eye(2), torch.ones(50, 2))  # of 2,000


def test_few_draws_are_thinned_and_many_pairs_compared(monkeypatch):
    assert thin(few(), generator(), by_name=False) is None  # a call costs more than its trials
    monkeypatch.setattr('graphattn.ops.sample.triton.draws._CALL', 0)
    assert thin(few(), generator(), by_name=False).num_edges < 200
    assert thin(contract.MODELS['dense'], generator(), by_name=False) is None
    assert thin(contract.MODELS['near one'], generator(), by_name=False) is None


def test_draws_that_registers_do_not_hold():
    model = FactorModel(torch.full((3, 1), 1e6), torch.eye(1), torch.ones(1, 1))
    assert draw(model, generator(), by_name=False) is None
    with pytest.raises(ValueError, match="'method' must not be named .*'auto'"):
        draw(model, generator(), by_name=True)


def test_a_bound_of_one_cannot_be_thinned():
    query_factor = torch.full((300, 2), 0.001)
    query_factor[7, 1] = 1.
    model = FactorModel(query_factor, torch.eye(2), torch.tensor([[0., 1.], [1., 0.]]))
    with pytest.raises(ValueError, match=r"'method' must.*\(got.*query 7\)"):
        thin(model, generator(), by_name=True)


@pytest.mark.parametrize('key', [1., 0.])
def test_factors_that_overflow_are_refused(key):
    model = FactorModel(torch.full((3, 1), 1e30), torch.full((1, 1), 1e30),
                        torch.full((3, 1), key))
    assert thin(model, generator(), by_name=False) is None  # and pairs are looked at
    with pytest.raises(ValueError, match="'model' must.*expected draws.*got (inf|nan)"):
        draw(model, generator(), by_name=True)


@pytest.mark.parametrize('sample, method', [(sample_bernoulli, 'compare'), (sample_fastrg,
                                                                            'compiled')])
def test_older_gpus_are_refused_by_name(sample, method, monkeypatch):
    from graphattn.ops.sample import methods

    monkeypatch.setattr(contract.MODEL, 'device', torch.device('cuda:0'))
    monkeypatch.setattr(methods, 'runs_on', lambda device: False)
    with pytest.raises(ValueError, match=rf"'method' must be 'torch' .* cuda:0 \(got '{method}'\); "
                                          r".* capability 8.0"):
        sample(contract.MODEL, method=method)
