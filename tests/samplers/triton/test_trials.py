"""The exact sampler of GPUs without one: Triton's interpreter computes it in numpy."""

import pytest
import torch
from scipy.stats import chi2

from graphattn.samplers import FactorModel
from tests.forked import run_anew
from tests.samplers import test_contract as contract

triton = pytest.importorskip('triton', reason="method 'triton' needs triton")

from graphattn.ops.sample.triton import trials  # noqa: E402
from tests.ops.triton.as_on_gpus import as_on_gpus  # noqa: E402

pytestmark = [pytest.mark.filterwarnings('ignore::RuntimeWarning'),  # of numpy, for what is masked
              pytest.mark.skipif(not triton.knobs.runtime.interpret,
                                 reason='TRITON_INTERPRET=1 is not set')]


def draw(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with as_on_gpus():
        return trials.compare(model, generator).validate()


@pytest.fixture
def tiles(monkeypatch):
    """Sets what a program holds, and how many there are; the interpreter takes its time for each,
    whatever it holds."""
    def of(rows, keys, programs=1):
        for name, value in (('_ROWS', rows), ('_KEYS', keys), ('_PROGRAMS', programs)):
            monkeypatch.setattr(trials, name, value)
    return of


# The distribution #############################################################################


@pytest.mark.slow
@pytest.mark.parametrize('name', ['dense', 'near one', 'zeros', 'exploration',
                                  'exploration above one', 'float64', 'subnormal keys'])
def test_cells_follow_the_distribution(name, tiles):
    """Each cell stands in many rows and columns, so that its trials have all kinds of neighbours;
    their number is that of a binomial distribution."""
    tiles(512, 128)
    model, (rows, columns) = contract.MODELS[name], (200, 12)
    copies = FactorModel(model.query_factor.repeat(rows, 1), model.mixing,
                         model.key_factor.repeat(columns, 1), exploration=model.exploration)
    cells = draw(copies).to_mask().view(rows, model.num_queries, columns, model.num_keys)
    count, num_trials = cells.sum((0, 2)).double(), rows * columns
    prob = model.expectation().double().clamp(max=1)
    certain = (prob < 1e-9) | (prob > 1 - 1e-9)
    assert torch.equal(count[certain], num_trials * prob[certain].round())
    deviation = (count - num_trials * prob)[~certain]
    statistic = (deviation**2 / (num_trials * prob * (1 - prob))[~certain]).sum()
    assert 1e-4 < chi2.sf(float(statistic), deviation.numel()) < 1 - 1e-4


@pytest.mark.slow
def test_later_bits_decide_trials_that_the_first_32_leave_open(tiles, monkeypatch):
    """If the first were all 0, a pair of probability 2**-34 would have 1 chance in 4."""
    tiles(128, 256)
    random_bits = trials._random_bits

    def only_more(seed, quad, stream, rows, keys):
        bits = random_bits(seed, quad, stream, rows, keys)
        return bits * 0 if stream == 0 else bits

    monkeypatch.setattr(trials, '_random_bits', only_more)
    columns = torch.tensor([[0.], [2.**-34], [2.**-32], [1.]]).repeat(64, 1)
    drawn = draw(FactorModel(torch.ones(128, 1), torch.eye(1), columns)).to_mask()
    never, seldom, *always = drawn.view(128, 64, 4).unbind(2)
    assert not never.any() and all(cells.all() for cells in always)
    assert abs(seldom.sum() - 2048) < 4 * (8192 * 0.25 * 0.75)**0.5


# Segments and tiles #################################################################


SIZES = {'ragged': contract.SIZES['ragged'], 'none': [],
         'beyond a tile': [(18, 9), (0, 5), (1, 20), (16, 8), (3, 0)]}


@pytest.mark.slow
@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
def test_segments_of_all_sizes(sizes, tiles):
    tiles(16, 8)
    model = contract.zero_one_model(sizes)
    graph = draw(model)
    assert torch.equal(graph.to_mask(), model.expectation().bool())
    assert all(torch.equal(*ptrs) for ptrs in zip(graph.segments.ptrs, model.segments.ptrs))


@pytest.mark.slow
def test_the_graph_does_not_depend_on_tiles(tiles):
    """Nor on pieces of rows, whose number follows from that of programs."""
    member = torch.eye(5)[torch.arange(70) % 5]
    ptr = torch.tensor([0, 3, 70])
    model = FactorModel(member, torch.rand(5, 5), member, query_ptr=ptr, key_ptr=ptr)
    graphs = []
    for shape in (64, 32, 2**10), (128, 128, 1):
        tiles(*shape)
        graphs.append(draw(model))
    assert graphs[0] == graphs[1] != draw(model, seed=1)


@pytest.mark.parametrize('num_queries, num_keys', [(0, 0), (0, 3), (3, 0)])
def test_no_edge_is_possible(num_queries, num_keys):
    model = FactorModel(torch.ones(num_queries, 2), torch.eye(2), torch.ones(num_keys, 2))
    graph = draw(model)
    assert (graph.num_queries, graph.num_keys, graph.num_edges) == (num_queries, num_keys, 0)


@pytest.mark.slow
def test_keys_beyond_two_bytes(tiles):
    tiles(2, 2**14)
    model = FactorModel(torch.ones(2, 1), torch.eye(1), (torch.arange(70_000) % 2)[:, None].float())
    assert torch.equal(draw(model).key, torch.arange(1, 70_000, 2).repeat(2))


@pytest.mark.slow
@pytest.mark.parametrize('num_clusters', [3, 33, 300])
def test_any_number_of_clusters(num_clusters):
    member = torch.eye(num_clusters)[torch.arange(40) % num_clusters]
    model = FactorModel(member, torch.rand(num_clusters, num_clusters).round(), member)
    assert torch.equal(draw(model).to_mask(), model.expectation().bool())


# Refused #############################################################################


@pytest.mark.slow
@pytest.mark.parametrize('query, key', [(0, 0), (69, 99), (3, 40)])
def test_one_pair_above_one_is_found(query, key):
    query_factor, key_factor = torch.zeros(70, 2), torch.zeros(100, 2)
    query_factor[:, 0] = key_factor[:, 0] = 0.1
    query_factor[query, 1] = key_factor[key, 1] = 1
    with pytest.raises(ValueError, match=r"of at most 1 .got 1.01.; .*sample_fastrg"):
        draw(FactorModel(query_factor, torch.eye(2), key_factor))


WITHOUT_TRITON = """
import torch, warnings
from graphattn.ops.sample import methods
from graphattn.samplers import FactorModel
methods.runs_on = lambda device: True
model = object.__new__(FactorModel)
model.device = torch.device('cuda')
with warnings.catch_warnings(record=True) as caught:
    assert not methods.takes_compiled(model, 'auto')
print(caught[0].message)
try:
    methods.takes_compiled(model, 'thin')
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_triton_torch_samples_after_a_warning():
    run = run_anew(WITHOUT_TRITON, missing=['triton'])
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "samplers fall back to slower methods: Triton cannot be imported: "
        "pip install 'graphattn[gpu]'",
        "'method' must be 'torch' or 'auto' without a compiler (got 'thin'): "
        "Triton cannot be imported: pip install 'graphattn[gpu]'"]
