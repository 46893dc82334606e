"""One suite for every way of every sampler: a new one needs only a line in ``WAYS``."""

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.stats import chi2

import graphattn.samplers
from graphattn.graphs.segments import Segments
from graphattn.ops.sample import reference
from graphattn.ops.sample.cpu.comparing import _is_short, compare
from graphattn.ops.sample.cpu.thinning import _expected_edges
from graphattn.ops.sample.trials import chunks_of, sample_with_torch
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg
from graphattn.sources.some_rows import sample_rows
from tests.forked import run_anew
from tests.shards import in_threads


@dataclass(frozen=True)
class Way:
    """A sampler and one of its methods."""

    sampler: str
    method: str

    def __call__(self, model, **kwargs):
        sample = getattr(graphattn.samplers, self.sampler)
        return sample(model, method=self.method, **kwargs)

    def skip_unless_it_serves(self, model):
        if self.method == 'thin' and not (highest_bound(model) < 1):
            pytest.skip('pairs that may be certain cannot be thinned')


def highest_bound(model):
    """Return a bound of all probabilities, from sums over clusters of largest entries."""
    bounds = [model.exploration]
    for segment in range(model.num_segments):
        rows = slice(*model.query_ptr[segment:segment + 2].tolist())
        keys = model.key_factor.to(model.dtype)[slice(*model.key_ptr[segment:segment + 2].tolist())]
        if len(keys):
            bounds += (model.mixed_query()[rows] @ keys.amax(0) + model.exploration).tolist()
    return max(bounds)


DISTRIBUTIONS = {'sample_bernoulli': reference.DISTRIBUTIONS['bernoulli'],
                 'sample_fastrg': reference.DISTRIBUTIONS['poisson']}
WAYS = {
    'fastrg with torch': Way('sample_fastrg', 'torch'),
    'fastrg compiled': Way('sample_fastrg', 'compiled'),
    'bernoulli with torch': Way('sample_bernoulli', 'torch'),
    'bernoulli compared': Way('sample_bernoulli', 'compare'),
    'bernoulli thinned': Way('sample_bernoulli', 'thin'),
}
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


def empty_head_model():
    """The first head, and the first cell of the second, are empty."""
    mixing = torch.stack([torch.zeros(2, 2), torch.tensor([[0., 0.2], [0.4, 0.1]])])
    member = torch.rand(8, 2, generator=torch.Generator().manual_seed(0))
    return FactorModel(member, mixing, member)


def near_one_model():
    query_factor = torch.tensor([[1., 0.], [0., 1.], [0.97, 0.03], [0.5, 0.49]])
    return FactorModel(query_factor, torch.eye(2), torch.tensor([[1., 1.], [0.98, 1.], [0.01, 1.]]))


def thinnable_model():
    """Bounds of several sizes below 1, and pairs far below and right at them."""
    query_factor = torch.tensor([[0.02, 0.], [0.3, 0.1], [0.5, 0.45], [0., 0.9], [0., 0.]])
    key_factor = torch.tensor([[1., 1.], [0.2, 0.], [0., 1.], [0., 0.], [0.7, 0.01]])
    return FactorModel(query_factor, torch.eye(2), key_factor, exploration=0.04)


def scaled_model(query_scale, mixing_scale, key_scale, dtype, **kwargs):
    """Ordinary probabilities, of factors that are anything but."""
    query_factor = torch.tensor([[0.5, 0.3], [0.2, 0.], [0., 0.6], [0., 0.]], dtype=dtype)
    mixing = torch.tensor([[0.9, 0.], [0.1, 0.8]], dtype=dtype)
    key_factor = torch.tensor([[1., 0.2], [0.5, 0.9], [0., 0.4], [0., 0.]], dtype=dtype)
    return FactorModel(query_factor * query_scale, mixing * mixing_scale, key_factor * key_scale,
                       **kwargs)


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
    'empty head': empty_head_model(),
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
    'vanishing keys': scaled_model(1e300, 1., 1e-300, torch.double),
    'subnormal keys': scaled_model(1e307, 1., 1e-308, torch.double, exploration=0.1),
    'vanishing queries': scaled_model(1e-150, 1e-150, 1e300, torch.double),
    'subnormal keys in float32': scaled_model(1e19, 1e18, 1e-38, torch.float, exploration=0.1),
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
    """Return which cells of each copy are edges, and the probability of each cell."""
    sample.skip_unless_it_serves(model)
    num_queries = model.num_queries // model.num_heads
    num_keys = model.num_keys // model.num_heads
    graph = sample(stack(model, copies), generator=torch.Generator().manual_seed(seed)).validate()
    head, query = graph.query // (copies * num_queries), graph.query % (copies * num_queries)
    drawn = torch.zeros(copies, model.num_heads, num_queries, num_keys, dtype=torch.double)
    drawn[query // num_queries, head, query % num_queries, graph.key % num_keys] = 1
    rate = model.expectation().double().view(model.num_heads, num_queries, -1, num_keys)
    prob = DISTRIBUTIONS[sample.sampler](torch.stack([rate[h, :,
                                                           h] for h in range(model.num_heads)]))
    return drawn.flatten(1), prob.flatten()


def is_plausible(statistic, degrees_of_freedom):
    return 1e-4 < chi2.sf(float(statistic), degrees_of_freedom) < 1 - 1e-4


def test_every_sampler_has_a_distribution():
    named = {name for name in graphattn.samplers.__all__ if name.startswith('sample_')}
    listed = DISTRIBUTIONS.keys() & {way.sampler for way in WAYS.values()}
    assert named == listed, 'add a sampler to DISTRIBUTIONS and to WAYS'


@pytest.fixture
def restore_threads():
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


# The distribution #############################################################################


def follows(drawn, prob):
    """Return whether each cell was drawn as often as its probability says, in all copies."""
    count, expected = drawn.sum(0), len(drawn) * prob
    certain = (prob < 1e-9) | (prob > 1 - 1e-9)
    assert torch.equal(count[certain], expected[certain].round())
    random = ~certain
    statistic = ((count - expected)**2 / (expected * (1 - prob)))[random].sum()
    return is_plausible(statistic, int(random.sum()))


@every_model
@every_sampler
def test_cells_follow_the_distribution(sample, model):
    assert follows(*draw_many(sample, model))


@pytest.mark.parametrize('num_shards', [1, 2, 4])
@pytest.mark.parametrize('distribution, sampler', [('bernoulli', 'sample_bernoulli'),
                                                   ('poisson', 'sample_fastrg')])
def test_cells_follow_the_distribution_in_any_number_of_processes(distribution, sampler,
                                                                  num_shards):
    """Bounds of processes cut sequences."""
    model = random_model(6, 6, 4)
    copies = stack(model, COPIES)
    bounds = [copies.num_queries * part // num_shards + part % 3 for part in range(num_shards)]

    def rows(shard):
        own = FactorModel(copies.query_factor[shard.start:shard.stop], copies.mixing,
                          copies.key_factor, query_ptr=shard.own_ptr, key_ptr=copies.key_ptr)
        generator = torch.Generator().manual_seed(num_shards)
        return sample_rows(own, shard, distribution=distribution, generator=generator).to_scipy()

    parts = in_threads(rows, copies.query_ptr, [*bounds, copies.num_queries])
    query, key = scipy.sparse.vstack(parts).nonzero()
    drawn = torch.zeros(COPIES, 6, 6, dtype=torch.double)
    drawn[query // 6, query % 6, key % 6] = 1
    assert follows(drawn.flatten(1), DISTRIBUTIONS[sampler](model.expectation().double()).flatten())


@pytest.mark.slow
@every_model
@every_sampler
def test_cells_are_independent(sample, model, copies=COPIES):
    drawn, prob = draw_many(sample, model, copies, seed=1)
    random = (prob > 0.02) & (prob < 0.98)
    standard = (drawn - prob)[:, random] / (prob * (1 - prob)).sqrt()[random]
    product = (standard.t() @ standard / copies**0.5).triu(1)
    num_random = int(random.sum())
    assert is_plausible(product.square().sum(), num_random * (num_random - 1) / 2)


@every_sampler
def test_edge_counts_agree_with_expected_edges(sample):
    model = random_model(600, 500, 8, density=0.01, query_ptr=torch.tensor([0, 350, 600]),
                         key_ptr=torch.tensor([0, 200, 500]), exploration=0.002)
    graph = sample(model, generator=torch.Generator().manual_seed(0))
    num_edges = graph.density(per_segment=True) * graph.query_ptr.diff() * graph.key_ptr.diff()
    expected = model.expected_edges()
    assert ((num_edges - expected).abs() < 4 * expected.sqrt()).all()


@every_sampler
def test_a_cell_of_probability_zero_is_never_drawn(sample):
    generator = torch.Generator().manual_seed(0)
    scale = 10.**torch.randint(-30, 1, (400, 6), generator=generator)
    on = torch.rand(2, 400, 6, generator=generator) < 0.3
    model = FactorModel(on[0] * scale, 0.15 * torch.rand(6, 6, generator=generator).round(),
                        on[1] * scale.flip(0))
    sample.skip_unless_it_serves(model)
    impossible = model.expectation() == 0
    mask = sample(model, generator=generator).to_mask()
    assert impossible.any() and mask.any()
    assert not (mask & impossible).any()


@pytest.mark.parametrize('key_scale', [1e-30, 0.])
@every_sampler
def test_factors_that_overflow_are_refused(sample, key_scale):
    model = FactorModel(torch.full((3, 1), 1e30), torch.full((1, 1), 1e30),
                        torch.full((3, 1), key_scale))
    with pytest.raises(ValueError, match="'model' must have|must not be 'thin'"):
        sample(model)


@every_sampler
def test_clusters_of_query_and_key_stay_paired(sample):
    member = torch.eye(2).repeat_interleave(200, dim=0)
    model = FactorModel(member, torch.tensor([[0., 0.3], [0.3, 0.]]), member)
    mask = sample(model, generator=torch.Generator().manual_seed(0)).to_mask()
    same_cluster = (member @ member.t()).bool()
    assert mask.any() and not mask[same_cluster].any()


@every_sampler
def test_each_edge_is_drawn_once(sample):
    model = FactorModel(torch.ones(30, 2), torch.full((2, 2), 0.25), torch.ones(20, 2),
                        exploration=9.)
    sample.skip_unless_it_serves(model)
    graph = sample(model, generator=torch.Generator().manual_seed(0)).validate()
    assert graph.num_edges == pytest.approx(600, abs=1)


def test_fastrg_saturates_and_bernoulli_does_not():
    model = FactorModel(torch.ones(500, 1), torch.eye(1), torch.ones(500, 1))
    assert sample_bernoulli(model).density() == 1
    generator = torch.Generator().manual_seed(0)
    assert sample_fastrg(model, generator=generator).density() == pytest.approx(0.632, abs=0.01)


# Segments, chunks and sizes #########################################################


def zero_one_model(sizes, seed=0):
    """Every p_ij is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    query_ptr, key_ptr = torch.tensor([(0, 0), *sizes]).cumsum(0).t().contiguous()
    member = torch.eye(5)
    query_factor = member[torch.randint(5, (int(query_ptr[-1]),), generator=generator)]
    key_factor = member[torch.randint(5, (int(key_ptr[-1]),), generator=generator)]
    mixing = torch.rand(5, 5, generator=generator).round()
    return FactorModel(query_factor, mixing, key_factor, query_ptr=query_ptr, key_ptr=key_ptr)


SIZES = {'equal': [(6, 6)] * 9, 'one': [(13, 11)], 'row and column': [(1, 30), (30, 1)],
         'ragged': [(4, 3), (0, 5), (2, 2), (4, 3), (7, 0), (9, 8)], 'none': []}


@pytest.mark.parametrize('pairs_per_chunk', [1, 7, 40, 2**20])
@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
def test_chunks_hold_every_pair_once(sizes, pairs_per_chunk):
    segments = Segments(*torch.tensor([(0, 0), *sizes]).cumsum(0).t().contiguous())
    met = torch.zeros(int(segments.query_ptr[-1]), int(segments.key_ptr[-1]), dtype=torch.int)
    for chunk in chunks_of(segments, pairs_per_chunk):
        assert chunk.num_pairs <= max(pairs_per_chunk, chunk.num_keys)
        for query, first_key in zip(chunk.queries(), chunk.first_keys()):
            met[query, first_key:first_key + chunk.num_keys] += 1
    assert torch.equal(met, (segments.of_queries()[:, None] == segments.of_keys()).int())


@pytest.mark.parametrize('pairs_per_chunk', [1, 7, 40, 2**20])
@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
@pytest.mark.parametrize('compare_pairs, source', [
    (compare, np.uint64(0)), (sample_with_torch, None)], ids=['compiled', 'torch'])
def test_pairs_are_compared_in_chunks_of_any_size(compare_pairs, source, sizes, pairs_per_chunk):
    model = zero_one_model(sizes)
    graph = compare_pairs(model, source, pairs_per_chunk=pairs_per_chunk).validate()
    assert torch.equal(graph.to_mask(), model.expectation().bool())


@pytest.mark.slow
@pytest.mark.parametrize('num_queries, num_keys, k, density', [
    (5, 3, 2, 0.3), (37, 1003, 5, 0.24), (130, 2100, 128, 0.2), (64, 4099, 16, 0.02)])
def test_a_graph_does_not_depend_on_how_its_products_are_rounded(num_queries, num_keys, k, density):
    model = random_model(num_queries, num_keys, k, density=density, exploration=0.01)
    seed = np.uint64(3)
    rounded = [compare(model, seed, product_dtype=dtype)
               for dtype in (None, torch.float32, torch.bfloat16)]
    in_small_chunks = compare(model, seed, product_dtype=torch.bfloat16, pairs_per_chunk=5000)
    assert all(graph == rounded[0] for graph in (*rounded, in_small_chunks))


@pytest.mark.parametrize('name', [*MODELS, 'many segments', 'many rows', 'many clusters'])
def test_short_segments_are_drawn_as_chunks_are_whatever_the_number_of_threads(name):
    many = {'many segments': lambda: random_model(2000, 2000, 5, query_ptr=25 * torch.arange(81)),
            'many rows': lambda: random_model(900, 130, 3, num_heads=2, density=0.1),
            'many clusters': lambda: random_model(150, 61, 130)}
    model = many[name]() if name in many else MODELS[name]
    seed, num_threads = np.uint64(3), torch.get_num_threads()
    graphs = [compare(model, seed, pairs_per_chunk=2**15)]
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            graphs.append(compare(model, seed).validate())
    finally:
        torch.set_num_threads(num_threads)
    assert _is_short(model) and all(graph == graphs[0] for graph in graphs)


@every_model
def test_the_edges_that_rule_thinning_out_are_those_that_are_expected(model):
    assert _expected_edges(model) == pytest.approx(float(model.expected_edges().sum()), rel=1e-5)


@pytest.mark.parametrize('value', [0.004, 0.25, 0.9, 1.])
def test_trials_that_are_left_open_follow_the_distribution(value):
    """Products are rounded to bfloat16 and bounded by what rounding takes: 16 bits that lie between
    the bounds, about a 64th of ``value`` apart, say nothing."""
    query, key = torch.full((1000, 3), value / 3), torch.ones(1001, 3)
    model = FactorModel(query, torch.eye(3), key)
    graph = compare(model, np.uint64(5), product_dtype=torch.bfloat16)
    num_pairs = 1000 * 1001
    deviation = (value * (1 - value) * num_pairs) ** 0.5
    assert abs(graph.num_edges - value * num_pairs) <= 4 * deviation + 1e-6 * num_pairs


@pytest.mark.slow
@pytest.mark.parametrize('method', ['compare', 'torch'])
@pytest.mark.parametrize('num_heads', [1, 3])
def test_a_large_segment_is_drawn_in_several_chunks(method, num_heads):
    model = zero_one_model([(1500, 1400)] * num_heads)
    graph = sample_bernoulli(model, method=method).validate()
    assert torch.equal(graph.to_mask(), model.expectation().bool())


def test_keys_beyond_two_bytes():
    model = FactorModel(torch.ones(2, 1), torch.eye(1), (torch.arange(70_000) % 2)[:, None].float())
    for method in ('compare', 'torch'):
        key = sample_bernoulli(model, method=method).validate().key
        assert torch.equal(key, torch.arange(1, 70_000, 2).repeat(2))


@every_sampler
@pytest.mark.parametrize('num_queries, num_keys, mixing', [
    (0, 0, 1.), (0, 3, 1.), (3, 0, 1.), (4, 5, 0.),
])
def test_no_edge_is_possible(sample, num_queries, num_keys, mixing):
    model = FactorModel(torch.ones(num_queries, 2), torch.full((2, 2), mixing / 4),
                        torch.ones(num_keys, 2))
    sample.skip_unless_it_serves(model)
    graph = sample(model).validate()
    assert (graph.num_queries, graph.num_keys, graph.num_edges) == (num_queries, num_keys, 0)
    assert graph.edge_index.dtype == torch.int64
    assert graph.device == model.device


@every_sampler
def test_the_graph_has_the_segments_of_the_model_and_no_edge_prob(sample):
    model = ragged_model()
    graph = sample(model)
    assert torch.equal(graph.query_ptr, model.query_ptr)
    assert torch.equal(graph.key_ptr, model.key_ptr)
    assert graph.edge_prob is None


@every_sampler
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_read_exactly(sample, dtype):
    mixing = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) / 64
    halves = [factor.to(dtype) for factor in (torch.eye(64), mixing, torch.eye(64))]
    graphs = [sample(FactorModel(*factors), generator=torch.Generator().manual_seed(0))
              for factors in (halves, [factor.float() for factor in halves])]
    assert graphs[0] == graphs[1]


@pytest.mark.slow
@every_sampler
def test_neither_gradients_nor_autocast_nor_layout_matter(sample):
    model = random_model(60, 60, 16, density=0.1)
    graph = sample(model, generator=torch.Generator().manual_seed(0))
    parameters = (model.query_factor.t().contiguous().t().requires_grad_(),
                  model.mixing.clone().requires_grad_(),
                  model.key_factor.t().contiguous().t().requires_grad_())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        other = sample(FactorModel(*parameters), generator=torch.Generator().manual_seed(0))
    assert other == graph


# Randomness ##########################################################################


@every_sampler
def test_the_generator_decides_and_nothing_else_advances(sample):
    model = random_model(50, 40, 4, density=0.1)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, again, other = (torch.Generator().manual_seed(seed) for seed in (0, 0, 1))
    graph = sample(model, generator=first)
    assert graph == sample(model, generator=again) != sample(model, generator=other)
    assert graph != sample(model, generator=first)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)


@every_sampler
def test_without_a_generator_torch_seeds(sample):
    model = random_model(50, 40, 4, density=0.1)
    with torch.random.fork_rng(devices=[]):
        graphs = [sample(model) for seed in (0, 0, 1) if torch.manual_seed(seed)]
    assert graphs[0] == graphs[1] != graphs[2]


@every_sampler
def test_the_graph_does_not_depend_on_threads(sample, restore_threads):
    model = random_model(700, 600, 16, density=0.05, query_ptr=torch.tensor([0, 300, 700]),
                         key_ptr=torch.tensor([0, 500, 600]))
    graphs = []
    for num_threads in (1, 2, 4):
        torch.set_num_threads(num_threads)
        graphs.append(sample(model, generator=torch.Generator().manual_seed(0)))
    assert graphs[0] == graphs[1] == graphs[2]


@pytest.mark.parametrize('method', ['compare', 'thin', 'torch'])
@pytest.mark.parametrize('num_threads', [1, 2])
def test_inference_mode_changes_no_result(method, num_threads, restore_threads):
    torch.set_num_threads(num_threads)
    graphs = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            model = random_model(400, 400, 16, density=0.05)
            graphs.append(sample_bernoulli(model, generator=torch.Generator().manual_seed(0),
                                           method=method))
    assert graphs[0] == graphs[1]


# Memory ##############################################################################


def peak():
    # Not ru_maxrss, which a process inherits from the one that starts it.
    line, = (line for line in open('/proc/self/status') if line.startswith('VmHWM'))
    return 1024 * int(line.split()[1])


def edges_and_bytes(sample):
    def draw(n):
        factors = torch.rand(n, 16), torch.full((16, 16), 1e-5), torch.rand(n, 16)
        return sample(FactorModel(*factors))

    torch.manual_seed(0)
    draw(2048)
    before = peak()
    return draw(8192).num_edges, peak() - before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
@every_sampler
def test_memory_stays_far_below_the_number_of_pairs(sample):
    with ProcessPoolExecutor(1, get_context('fork')) as pool:  # whose peak is its own
        num_edges, num_bytes = pool.submit(edges_and_bytes, sample).result()
    assert num_edges == pytest.approx(8192**2 * 0.00064, rel=0.1)
    assert num_bytes < 8192**2 / 4  # a quarter of a boolean mask


# Methods #############################################################################


def method_taken(model):
    """The method that ``'auto'`` takes: the one that draws the same graph from the same seed."""
    draw = {method: sample_bernoulli(model, generator=torch.Generator().manual_seed(0),
                                     method=method) for method in ('auto', 'compare')}
    if draw['auto'] == draw['compare']:
        return 'compare'
    assert draw['auto'] == sample_bernoulli(model, generator=torch.Generator().manual_seed(0),
                                            method='thin')
    return 'thin'


def test_a_pair_that_may_be_certain_is_compared():
    query_factor = torch.full((300, 2), 0.001)
    model = FactorModel(query_factor, torch.eye(2), torch.ones(400, 2))
    assert method_taken(model) == 'thin'
    query_factor[7, 1] = 0.95
    model = FactorModel(query_factor, torch.eye(2), torch.ones(400, 2))
    assert method_taken(model) == 'compare'
    assert sample_bernoulli(model, method='thin').validate().num_edges > 300


@pytest.mark.parametrize('largest', [1., 1.5])
def test_thinning_by_name_refuses_a_pair_that_may_be_certain(largest):
    query_factor = torch.full((300, 2), 0.001)
    query_factor[7, 1] = largest
    model = FactorModel(query_factor, torch.eye(2), torch.tensor([[0., 1.], [1., 0.]]))
    with pytest.raises(ValueError, match=r"'method' must not be 'thin' .* bound below 1 .*"
                                         rf"{largest + 0.001:g} for query 7\); .*'compare'"):
        sample_bernoulli(model, method='thin')


@pytest.mark.parametrize('sample, methods', [
    (sample_bernoulli, ('auto', 'compare', 'thin', 'torch')),
    (sample_fastrg, ('auto', 'compiled', 'torch'))])
def test_a_method_is_known_or_refused(sample, methods):
    with pytest.raises(ValueError, match="'method' must be one of .*got 'troch'") as error:
        sample(MODEL, method='troch')
    assert str(methods) in str(error.value)


def test_thinning_evens_out_over_many_keys():
    """Pairs at a row's bound beside pairs far below, where a wrong multiplier shows."""
    model = FactorModel(torch.tensor([[0.85], [0.02]]), torch.eye(1),
                        torch.cat([torch.ones(1, 1), torch.full((40_000, 1), 0.01)]))
    drawn, prob = draw_many(WAYS['bernoulli thinned'], model, copies=20)
    count, expected = drawn.sum(0).view(2, -1), 20 * prob.view(2, -1)
    total, variance = expected[:, 1:].sum(1), (expected * (1 - prob.view(2, -1)))[:, 1:].sum(1)
    assert ((count[:, 1:].sum(1) - total).abs() < 4 * variance.sqrt()).all()


SAMPLE_TWICE = """
import warnings
import torch
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg
model = FactorModel(torch.eye(3), torch.eye(3), torch.eye(3))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    for _ in range(2):
        assert sample_bernoulli(model).num_edges == 3
        sample_fastrg(model).validate()
print(*(warning.message for warning in caught), sep='\\n')
for sample, method in ((sample_bernoulli, 'compare'), (sample_bernoulli, 'thin'),
                       (sample_fastrg, 'compiled')):
    try:
        sample(model, method=method)
    except ImportError as error:
        print(error)
"""


@pytest.mark.slow
def test_without_numba_torch_samples_after_one_warning():
    run = run_anew(SAMPLE_TWICE, missing=['numba'])
    assert run.returncode == 0, run.stderr
    warning, *errors = run.stdout.splitlines()
    assert warning.startswith('samplers fall back to slower methods')
    assert 'pip install numba' in warning
    assert len(errors) == 3 and all('pip install numba' in error for error in errors)


@pytest.mark.slow
def test_other_faults_are_not_hidden_by_slower_ways():
    run = run_anew(f"""
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == 'graphattn.ops.sample.cpu.drawing':
            raise ImportError('here is the fault')
sys.meta_path.insert(0, Finder())
{SAMPLE_TWICE}""")
    assert run.returncode == 1
    assert 'ImportError: here is the fault' in run.stderr


# Compiled by torch ###################################################################


@pytest.mark.slow
@every_sampler
def test_a_compiled_function_samples_outside_its_graph(sample):
    def draw(x):
        model = FactorModel(x.sigmoid(), torch.full((2, 2), 0.1), x.sigmoid())
        graph = sample(model, generator=generator)
        return model.mixed_query().sum() + graph.num_edges

    x, generator = torch.zeros(40, 2, requires_grad=True), torch.Generator()
    torch._dynamo.reset()
    values = []
    for function in (draw, torch.compile(draw, backend='eager')):
        generator.manual_seed(0)
        values.append(function(x))
    assert values[0] == values[1]
    grads = [torch.autograd.grad(value, x)[0] for value in values]
    torch.testing.assert_close(*grads)
    breaks = torch._dynamo.explain(draw)(x).break_reasons
    assert len(breaks) == 1 and 'number of edges' in str(breaks[0].reason)


# Bad input ###########################################################################


MODEL = random_model(4, 4, 2)


@every_sampler
def test_the_generator_is_on_the_device_of_the_model(sample, monkeypatch):
    monkeypatch.setattr(MODEL, 'device', torch.device('cuda:0'))
    with pytest.raises(ValueError, match=r"'generator' must.*cuda:0,.*model.*\(got cpu\)"):
        sample(MODEL, generator=torch.Generator())


@pytest.mark.parametrize('largest, exploration', [(1.01, 0.), (1.01, 0.3), (7., 0.)])
@pytest.mark.parametrize('method', ['auto', 'compare', 'torch'])
def test_bernoulli_takes_probabilities_only(method, largest, exploration):
    model = FactorModel(torch.tensor([[0.5], [largest]]), torch.eye(1), torch.ones(3, 1),
                        exploration=exploration)
    with pytest.raises(ValueError, match=rf"of at most 1 .got {largest:g}.; .*sample_fastrg"):
        sample_bernoulli(model, method=method)


@pytest.mark.parametrize('query, key', [(0, 0), (3, 1300), (1499, 1400)])
@pytest.mark.parametrize('num_threads', [1, 2])
@pytest.mark.parametrize('method', ['compare', 'torch'])
def test_one_pair_above_one_is_found(method, num_threads, query, key, restore_threads):
    torch.set_num_threads(num_threads)
    query_factor, key_factor = torch.zeros(1500, 2), torch.zeros(1401, 2)
    query_factor[:, 0] = key_factor[:, 0] = 0.1
    query_factor[query, 1] = key_factor[key, 1] = 1
    with pytest.raises(ValueError, match="most 1 .got 1.01.; .*sample_fastrg"):
        sample_bernoulli(FactorModel(query_factor, torch.eye(2), key_factor), method=method)


@pytest.mark.parametrize('num_keys', [6, 7])
@pytest.mark.parametrize('method', ['auto', 'compare', 'torch'])
def test_a_product_that_overflows_to_nan_is_refused(method, num_keys):
    """Factors are finite; their products are inf, and 0 times inf is NaN."""
    large = 3e38
    for key in range(num_keys):
        key_factor = torch.full((num_keys, 2), 0.1)
        key_factor[key] = 0
        model = FactorModel(torch.full((9, 2), large), torch.full((2, 2), large), key_factor)
        with pytest.raises(ValueError, match="most 1 .got (nan|inf)"):
            sample_bernoulli(model, method=method)


@pytest.mark.parametrize('dtype', [torch.float, torch.double])
@pytest.mark.parametrize('exploration', [1., 2.**15, 1e30])
@pytest.mark.parametrize('method', ['auto', 'compare', 'torch'])
def test_bernoulli_draws_all_pairs_for_any_exploration_from_one_on(method, exploration, dtype):
    factor = torch.full((50, 1), 0.1, dtype=dtype)
    model = FactorModel(factor, factor[:1], factor, exploration=exploration)
    assert sample_bernoulli(model, method=method).density() == 1


def test_bernoulli_forgives_rounding_above_one():
    model = FactorModel(torch.full((3, 1), 1 + 5e-5), torch.eye(1), torch.ones(3, 1))
    assert sample_bernoulli(model).density() == 1


@pytest.mark.parametrize('sample', [WAYS['fastrg with torch'], WAYS['fastrg compiled']])
def test_fastrg_refuses_more_draws_than_memory_holds(sample):
    model = FactorModel(torch.full((3, 1), 1e20), torch.eye(1), torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"'model' must.*got 9e\+20"):
        sample(model)
