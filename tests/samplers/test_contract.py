"""One suite for every way of every sampler: a new one needs only a line in ``WAYS``."""

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import chi2

import graphattn.samplers
from graphattn.samplers import FactorModel, bernoulli, fastrg, sample_bernoulli, sample_fastrg


class Way(NamedTuple):
    """A sampler that is made to take one of its ways."""

    sampler: str
    constants: dict

    def __call__(self, model, **kwargs):
        module = {'sample_fastrg': fastrg, 'sample_bernoulli': bernoulli}[self.sampler]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.constants.items():
                patch.setattr(module, name, value)
            return getattr(module, self.sampler)(model, **kwargs)


LAWS = {  # P(edge) of a pair from its p_ij + exploration
    'sample_bernoulli': lambda rate: rate.clamp(max=1),
    'sample_fastrg': lambda rate: -torch.expm1(-rate),
}
WITH_TORCH = {'_compiled': lambda device: None}
WAYS = {
    'fastrg with torch': Way('sample_fastrg', WITH_TORCH),
    'fastrg compiled': Way('sample_fastrg', {}),
    'bernoulli with torch': Way('sample_bernoulli', WITH_TORCH),
    'bernoulli compared': Way('sample_bernoulli', {'_THINNING_BELOW': 0.}),
    'bernoulli thinned': Way('sample_bernoulli', {'_THINNING_BELOW': np.inf,
                                                  '_HIGHEST_BOUND': 0.999}),
}
COMPARING = [WAYS['bernoulli with torch'], WAYS['bernoulli compared']]
every_sampler = pytest.mark.parametrize('sample', WAYS.values(), ids=WAYS)
COPIES = 10_000


def random_model(num_queries, num_keys, k, num_heads=1, density=0.3, seed=0, **kwargs):
    generator = torch.Generator().manual_seed(seed)
    query_factor = torch.rand(num_heads * num_queries, k, generator=generator)
    key_factor = torch.rand(num_heads * num_keys, k, generator=generator)
    mixing = torch.rand(num_heads, k, k, generator=generator)
    mixing *= 4 * density / mixing.sum((1, 2), keepdim=True)
    mixing = mixing if num_heads > 1 else mixing[0]
    return FactorModel(query_factor, mixing, key_factor, **kwargs)


def anti_diagonal_model():
    member = torch.eye(2).repeat_interleave(3, dim=0)
    return FactorModel(member, torch.tensor([[0., 0.5], [0.2, 0.]]), member)


def near_one_model():
    query_factor = torch.tensor([[1., 0.], [0., 1.], [0.97, 0.03], [0.5, 0.49]])
    return FactorModel(query_factor, torch.eye(2), torch.tensor([[1., 1.], [0.98, 1.], [0.01, 1.]]))


def thinnable_model():
    """Bounds of several sizes below 1, and pairs far below and right at them."""
    query_factor = torch.tensor([[0.02, 0.], [0.3, 0.1], [0.5, 0.45], [0., 0.9], [0., 0.]])
    key_factor = torch.tensor([[1., 1.], [0.2, 0.], [0., 1.], [0., 0.], [0.7, 0.01]])
    return FactorModel(query_factor, torch.eye(2), key_factor, exploration=0.04)


def model_with_zeros():
    query_factor = torch.tensor([[0., 0., 0.], [0., 0.3, 0.], [0., 0., 0.9], [0., 0.5, 0.5]])
    key_factor = torch.tensor([[1., 0., 0.], [0., 0.7, 0.], [0., 0., 0.], [0.3, 0., 0.4]])
    return FactorModel(query_factor, torch.eye(3), key_factor)


def ragged_model():
    return random_model(7, 9, 3, query_ptr=torch.tensor([0, 2, 3, 3, 6, 7, 7]),
                        key_ptr=torch.tensor([0, 3, 4, 6, 8, 8, 9]))


def two_heads_model():
    ptr = torch.tensor([0, 2, 5, 7, 10])
    return random_model(5, 5, 3, num_heads=2, query_ptr=ptr, key_ptr=ptr)


MODELS = {
    'dense': random_model(5, 5, 3),
    'rectangular': random_model(3, 8, 2),
    'one query': random_model(1, 12, 4),
    'anti-diagonal': anti_diagonal_model(),
    'rank one': random_model(6, 4, 1, density=0.2),
    'near one': near_one_model(),
    'zeros': model_with_zeros(),
    'exploration': FactorModel(torch.eye(4), 0.4 * torch.eye(4), torch.eye(4), exploration=0.05),
    'exploration above one': FactorModel(torch.eye(2), torch.eye(2), torch.eye(2),
                                         exploration=0.5),
    'below bounds': thinnable_model(),
    'ragged': ragged_model(),
    'two heads': two_heads_model(),
    'float64': FactorModel(*[0.2 + 0.1 * torch.eye(4, dtype=torch.float64)] * 3),
}
every_model = pytest.mark.parametrize('model', MODELS.values(), ids=MODELS)


def stack(model, copies):
    """``copies`` of the model side by side in one, so that one sample holds as many samples."""
    def tile(factor, ptr):
        per_head = factor.view(model.num_heads, 1, -1, model.num_clusters)
        sizes = ptr.diff().view(model.num_heads, -1).repeat(1, copies).flatten()
        tiled = per_head.expand(-1, copies, -1, -1).reshape(-1, model.num_clusters)
        return tiled, torch.cat([ptr[:1], sizes.cumsum(0)])

    query_factor, query_ptr = tile(model.query_factor, model.query_ptr)
    key_factor, key_ptr = tile(model.key_factor, model.key_ptr)
    return FactorModel(query_factor, model.mixing, key_factor, query_ptr=query_ptr,
                       key_ptr=key_ptr, exploration=model.exploration)


def draw_many(sample, model, copies=COPIES, seed=0):
    """Which cells of each copy are edges, and the law's probability of each cell."""
    num_queries = model.num_queries // model.num_heads
    num_keys = model.num_keys // model.num_heads
    graph = sample(stack(model, copies), generator=torch.Generator().manual_seed(seed)).validate()
    head, query = graph.query // (copies * num_queries), graph.query % (copies * num_queries)
    drawn = torch.zeros(copies, model.num_heads, num_queries, num_keys, dtype=torch.double)
    drawn[query // num_queries, head, query % num_queries, graph.key % num_keys] = 1
    rate = model.expectation().double().view(model.num_heads, num_queries, -1, num_keys)
    prob = LAWS[sample.sampler](torch.stack([rate[h, :, h] for h in range(model.num_heads)]))
    return drawn.flatten(1), prob.flatten()


def is_plausible(statistic, degrees_of_freedom):
    return 1e-4 < chi2.sf(float(statistic), degrees_of_freedom) < 1 - 1e-4


def test_every_sampler_has_a_law():
    named = {name for name in graphattn.samplers.__all__ if name.startswith('sample_')}
    assert named == LAWS.keys() == {way.sampler for way in WAYS.values()}


# The law #############################################################################


@every_model
@every_sampler
def test_cells_follow_the_law(sample, model):
    drawn, prob = draw_many(sample, model)
    count, expected = drawn.sum(0), COPIES * prob
    certain = (prob < 1e-9) | (prob > 1 - 1e-9)
    assert torch.equal(count[certain], expected[certain].round())
    random = ~certain
    statistic = ((count - expected)**2 / (expected * (1 - prob)))[random].sum()
    assert is_plausible(statistic, int(random.sum()))


@every_model
@every_sampler
def test_cells_are_independent(sample, model):
    drawn, prob = draw_many(sample, model, seed=1)
    random = (prob > 0.02) & (prob < 0.98)
    standard = (drawn - prob)[:, random] / (prob * (1 - prob)).sqrt()[random]
    product = (standard.t() @ standard / COPIES**0.5).triu(1)
    num_random = int(random.sum())
    assert is_plausible(product.square().sum(), num_random * (num_random - 1) / 2)


@every_sampler
def test_edge_counts_agree_with_expected_edges(sample):
    model = random_model(600, 500, 8, density=0.01, query_ptr=torch.tensor([0, 350, 600]),
                         key_ptr=torch.tensor([0, 200, 500]), exploration=0.002)
    graph = sample(model, generator=torch.Generator().manual_seed(0))
    num_edges = graph.density(per_block=True) * graph.query_ptr.diff() * graph.key_ptr.diff()
    expected = model.expected_edges()
    assert ((num_edges - expected).abs() < 4 * expected.sqrt()).all()


@every_sampler
def test_a_cell_of_probability_zero_is_never_drawn(sample):
    generator = torch.Generator().manual_seed(0)
    scale = 10.**torch.randint(-30, 1, (400, 6), generator=generator)
    on = torch.rand(2, 400, 6, generator=generator) < 0.3
    model = FactorModel(on[0] * scale, 0.15 * torch.rand(6, 6, generator=generator).round(),
                        on[1] * scale.flip(0))
    impossible = model.expectation() == 0
    mask = sample(model, generator=generator).to_mask()
    assert impossible.any() and mask.any()
    assert not (mask & impossible).any()


@every_sampler
def test_clusters_of_query_and_key_stay_paired(sample):
    member = torch.eye(2).repeat_interleave(200, dim=0)
    model = FactorModel(member, torch.tensor([[0., 0.3], [0.3, 0.]]), member)
    mask = sample(model, generator=torch.Generator().manual_seed(0)).to_mask()
    same_cluster = (member @ member.t()).bool()
    assert mask.any() and not mask[same_cluster].any()


@every_sampler
def test_an_empty_first_cell_and_head_disturb_no_other(sample):
    mixing = torch.stack([torch.zeros(2, 2), torch.tensor([[0., 0.2], [0.4, 0.1]])])
    member = torch.rand(8, 2, generator=torch.Generator().manual_seed(0))
    model = FactorModel(member, mixing, member)
    drawn, prob = draw_many(sample, model)
    head_1 = slice(16, 32)
    assert not drawn[:, :16].any()
    count, expected = drawn.sum(0)[head_1], (COPIES * prob)[head_1]
    assert is_plausible(((count - expected)**2 / (expected * (1 - prob[head_1]))).sum(), 16)


@every_sampler
def test_each_edge_is_drawn_once(sample):
    model = FactorModel(torch.ones(30, 2), torch.full((2, 2), 0.25), torch.ones(20, 2),
                        exploration=9.)
    graph = sample(model, generator=torch.Generator().manual_seed(0)).validate()
    assert graph.num_edges == pytest.approx(600, abs=1)


def test_fastrg_steps_over_cells_of_no_width():
    cell_start = torch.tensor([0, 0, 1, 1, 2, 2])
    first = torch.zeros(50, dtype=torch.long)
    cell = fastrg._draw(cell_start, first, first + 5, torch.Generator().manual_seed(0))
    assert set(cell.tolist()) == {1, 3}


@pytest.mark.parametrize('sample', [WAYS['fastrg with torch'], WAYS['fastrg compiled']])
def test_fastrg_takes_any_rate(sample):
    rate = torch.tensor([[0.], [1e-6], [1.], [3.], [1e3]])
    drawn, prob = draw_many(sample, FactorModel(rate, torch.eye(1), torch.ones(1, 1)),
                            copies=300)
    assert drawn[:, 4].all() and not drawn[:, :2].any()
    assert drawn.mean(0)[2:4] == pytest.approx(prob[2:4].numpy(), abs=0.08)


def test_fastrg_saturates_and_bernoulli_does_not():
    model = FactorModel(torch.ones(500, 1), torch.eye(1), torch.ones(500, 1))
    assert sample_bernoulli(model).density() == 1
    generator = torch.Generator().manual_seed(0)
    assert sample_fastrg(model, generator=generator).density() == pytest.approx(0.632, abs=0.01)


# Blocks, chunks and sizes ############################################################


def zero_one_model(sizes, seed=0):
    """Every p_ij is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    query_ptr, key_ptr = torch.tensor([(0, 0), *sizes]).cumsum(0).t().contiguous()
    member = torch.eye(5)
    query_factor = member[torch.randint(5, (int(query_ptr[-1]),), generator=generator)]
    key_factor = member[torch.randint(5, (int(key_ptr[-1]),), generator=generator)]
    mixing = torch.rand(5, 5, generator=generator).round()
    return FactorModel(query_factor, mixing, key_factor, query_ptr=query_ptr, key_ptr=key_ptr)


@pytest.mark.parametrize('pairs_per_chunk', [1, 7, 40, 2**20])
@pytest.mark.parametrize('sizes', [
    [(6, 6)] * 9, [(13, 11)], [(1, 30), (30, 1)], [(4, 3), (0, 5), (2, 2), (4, 3), (7, 0), (9, 8)],
], ids=['equal', 'one', 'row and column', 'ragged'])
@pytest.mark.parametrize('sample', COMPARING)
def test_bernoulli_draws_in_chunks_of_any_size(sample, sizes, pairs_per_chunk, monkeypatch):
    monkeypatch.setattr(bernoulli, '_PAIRS_PER_CHUNK', pairs_per_chunk)
    monkeypatch.setattr(bernoulli, '_PAIRS_IN_CACHE', pairs_per_chunk)
    model = zero_one_model(sizes)
    graph = sample(model).validate()
    assert torch.equal(graph.to_mask(), model.expectation().bool())


@pytest.mark.parametrize('sample', COMPARING)
def test_bernoulli_splits_a_large_block_into_rows(sample):
    model = zero_one_model([(1500, 1400)])
    assert model.num_queries * model.num_keys > bernoulli._PAIRS_PER_CHUNK
    assert torch.equal(sample(model).to_mask(), model.expectation().bool())


@every_sampler
@pytest.mark.parametrize('num_queries, num_keys, mixing', [
    (0, 0, 1.), (0, 3, 1.), (3, 0, 1.), (4, 5, 0.),
])
def test_no_edge_is_possible(sample, num_queries, num_keys, mixing):
    model = FactorModel(torch.ones(num_queries, 2), torch.full((2, 2), mixing / 4),
                        torch.ones(num_keys, 2))
    graph = sample(model).validate()
    assert (graph.num_queries, graph.num_keys, graph.num_edges) == (num_queries, num_keys, 0)
    assert graph.edge_index.dtype == torch.int64
    assert graph.device == model.device


@every_sampler
def test_no_block_is_an_empty_graph(sample):
    ptr = torch.tensor([0])
    model = FactorModel(torch.ones(0, 2), torch.ones(3, 2, 2), torch.ones(0, 2), query_ptr=ptr)
    assert sample(model).num_blocks == 0


@every_sampler
def test_the_graph_has_the_blocks_of_the_model_and_no_edge_prob(sample):
    model = ragged_model()
    graph = sample(model)
    assert torch.equal(graph.query_ptr, model.query_ptr)
    assert torch.equal(graph.key_ptr, model.key_ptr)
    assert graph.edge_prob is None


@every_sampler
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_read_exactly(sample, dtype):
    mixing = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    halves = [factor.to(dtype) for factor in (torch.eye(64), mixing, torch.eye(64))]
    graphs = [sample(FactorModel(*factors), generator=torch.Generator().manual_seed(0))
              for factors in (halves, [factor.float() for factor in halves])]
    assert graphs[0] == graphs[1]


@every_sampler
def test_neither_gradients_nor_autocast_nor_layout_matter(sample):
    model = random_model(60, 60, 16)
    graph = sample(model, generator=torch.Generator().manual_seed(0))
    parameters = (model.query_factor.t().contiguous().t().requires_grad_(),
                  model.mixing.clone().requires_grad_(),
                  model.key_factor.t().contiguous().t().requires_grad_())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        other = sample(FactorModel(*parameters), generator=torch.Generator().manual_seed(0))
    assert other == graph


# Randomness ##########################################################################


@every_sampler
def test_the_generator_decides(sample):
    model = random_model(50, 40, 4)
    first, again, other = (sample(model, generator=torch.Generator().manual_seed(seed))
                           for seed in (0, 0, 1))
    assert first == again and first != other


@every_sampler
def test_the_generator_advances(sample):
    generator = torch.Generator().manual_seed(0)
    model = random_model(50, 40, 4)
    assert sample(model, generator=generator) != sample(model, generator=generator)


@every_sampler
def test_a_generator_leaves_the_global_state_alone(sample):
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    sample(random_model(50, 40, 4), generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)


@every_sampler
def test_without_a_generator_torch_seeds(sample):
    model = random_model(50, 40, 4)
    with torch.random.fork_rng(devices=[]):
        graphs = [sample(model) for seed in (0, 0, 1) if torch.manual_seed(seed)]
    assert graphs[0] == graphs[1] != graphs[2]


@pytest.fixture
def restore_threads():
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


@every_sampler
def test_the_graph_does_not_depend_on_threads(sample, restore_threads):
    model = random_model(700, 600, 16, density=0.1, query_ptr=torch.tensor([0, 300, 700]),
                         key_ptr=torch.tensor([0, 500, 600]))
    graphs = []
    for num_threads in (1, 2, 4):
        torch.set_num_threads(num_threads)
        graphs.append(sample(model, generator=torch.Generator().manual_seed(0)))
    assert graphs[0] == graphs[1] == graphs[2]


# Memory ##############################################################################

MEASURE = """
import torch
from graphattn.samplers import FactorModel, bernoulli, fastrg, sample_bernoulli, sample_fastrg

def peak():
    # Not ru_maxrss, which a process inherits from the one that starts it.
    line, = (line for line in open('/proc/self/status') if line.startswith('VmHWM'))
    return 1024 * int(line.split()[1])

def draw(n):
    model = FactorModel(torch.rand(n, 16), torch.full((16, 16), 1e-5), torch.rand(n, 16))
    return {sampler}(model)

torch.manual_seed(0)
for name, value in {constants}.items():
    setattr({module}, name, value)
draw(2048)
before = peak()
print(draw(8192).num_edges, peak() - before)
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
@every_sampler
def test_memory_stays_far_below_the_number_of_pairs(sample):
    constants = repr(sample.constants).replace('inf', 'float("inf")')
    if sample.constants is WITH_TORCH:
        constants = "{'_compiled': lambda device: None}"
    script = MEASURE.format(sampler=sample.sampler, module=sample.sampler.removeprefix('sample_'),
                            constants=constants)
    run = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True,
                         check=True)
    num_edges, num_bytes = map(int, run.stdout.split())
    assert num_edges == pytest.approx(8192**2 * 0.00064, rel=0.1)
    assert num_bytes < 8192**2 / 4  # a quarter of a boolean mask


# Ways ################################################################################


def way_taken(model, monkeypatch):
    """The compiled functions that ``sample_bernoulli`` calls."""
    compiled, calls = bernoulli._compiled('cpu'), set()
    for owner, name in ((compiled, 'compare'), (compiled.Rates, 'thin')):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, name=name, original=original: (
            calls.add(name), original(*args))[1])
    sample_bernoulli(model)
    monkeypatch.undo()
    return calls


def test_expected_edges_choose_the_way(monkeypatch):
    ways = [way_taken(random_model(300, 400, 4, density=density), monkeypatch)
            for density in (0.01, 0.05, 0.15, 0.3)]
    assert ways == [{'thin'}, {'thin'}, {'compare'}, {'compare'}]


def test_tables_that_would_be_read_little_are_not_filled(monkeypatch):
    assert way_taken(random_model(8, 400, 16, density=0.01), monkeypatch) == {'compare'}


def test_a_pair_that_may_be_certain_is_compared(monkeypatch):
    query_factor = torch.full((300, 2), 0.001)
    assert way_taken(FactorModel(query_factor, torch.eye(2), torch.ones(400, 2)),
                     monkeypatch) == {'thin'}
    query_factor[7, 1] = 0.95
    assert way_taken(FactorModel(query_factor, torch.eye(2), torch.ones(400, 2)),
                     monkeypatch) == {'compare'}


def test_thinning_evens_out_over_many_keys():
    """Pairs at a row's bound beside pairs far below, where a wrong boost shows."""
    model = FactorModel(torch.tensor([[0.85], [0.02]]), torch.eye(1),
                        torch.cat([torch.ones(1, 1), torch.full((40_000, 1), 0.01)]))
    drawn, prob = draw_many(WAYS['bernoulli thinned'], model, copies=20)
    count, expected = drawn.sum(0).view(2, -1), 20 * prob.view(2, -1)
    total, variance = expected[:, 1:].sum(1), (expected * (1 - prob.view(2, -1)))[:, 1:].sum(1)
    assert ((count[:, 1:].sum(1) - total).abs() < 4 * variance.sqrt()).all()


def test_more_edges_than_expected_find_room():
    compiled = bernoulli._compiled('cpu')
    model = zero_one_model([(40, 30)])
    chunk = torch.arange(40), model.expectation()
    rows = compiled.compare([chunk], model, 0., compiled.draw_seed(None))
    assert torch.equal(rows.to_graph(model).validate().to_mask(), model.expectation().bool())


@pytest.mark.parametrize('broken', [False, True], ids=['missing', 'broken'])
def test_without_numba_torch_samples_after_one_warning(broken):
    script = f"""
import sys, warnings
if {broken}:
    class Finder:
        def find_spec(self, name, path, target=None):
            if name == 'numba':
                raise RuntimeError('numba is broken')
    sys.meta_path.insert(0, Finder())
else:
    sys.modules['numba'] = None
import torch
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg
model = FactorModel(torch.eye(3), torch.eye(3), torch.eye(3))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    for _ in range(2):
        assert sample_bernoulli(model).num_edges == 3
        sample_fastrg(model).validate()
print(*(warning.message for warning in caught), sep='\\n')
"""
    run = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    reason = 'numba is broken' if broken else 'pip install numba'
    assert run.stdout.count('\n') == 1
    assert 'compiled samplers cannot be loaded' in run.stdout and reason in run.stdout


# Bad input ###########################################################################

MODEL = random_model(4, 4, 2)


@every_sampler
@pytest.mark.parametrize('model, generator, error, match', [
    (torch.ones(2, 2), None, TypeError, r"'model' must be a FactorModel \(got Tensor\)"),
    (MODEL, 0, TypeError, r"'generator' must be a torch.Generator or None \(got int\)"),
    (MODEL, np.random.default_rng(0), TypeError, r"'generator' must be .* \(got Generator\)"),
])
def test_bad_input(sample, model, generator, error, match):
    with pytest.raises(error, match=match):
        sample(model, generator=generator)


@every_sampler
def test_the_generator_is_on_the_device_of_the_model(sample, monkeypatch):
    monkeypatch.setattr(FactorModel, 'device', torch.device('cuda:0'))
    with pytest.raises(ValueError, match=r"'generator' must be on cuda:0, where the model is "
                                         r"\(got cpu\)"):
        sample(MODEL, generator=torch.Generator())


@pytest.mark.parametrize('largest, exploration', [(1.01, 0.), (1.01, 0.3), (7., 0.)])
@pytest.mark.parametrize('sample', [way for way in WAYS.values()
                                    if way.sampler == 'sample_bernoulli'])
def test_bernoulli_takes_probabilities_only(sample, largest, exploration):
    model = FactorModel(torch.tensor([[0.5], [largest]]), torch.eye(1), torch.ones(3, 1),
                        exploration=exploration)
    with pytest.raises(ValueError, match=rf"largest p_ij is {largest:g}; .*sample_fastrg"):
        sample(model)


def test_bernoulli_forgives_rounding_above_one():
    model = FactorModel(torch.full((3, 1), 1 + 5e-5), torch.eye(1), torch.ones(3, 1))
    assert sample_bernoulli(model).density() == 1


@pytest.mark.parametrize('sample', [WAYS['fastrg with torch'], WAYS['fastrg compiled']])
def test_fastrg_refuses_more_draws_than_memory_holds(sample):
    model = FactorModel(torch.full((3, 1), 1e20), torch.eye(1), torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"'model' expects 9e\+20 draws"):
        sample(model)
