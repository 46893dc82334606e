"""On a GPU nothing mixes devices, and who waits for it has a reason: see simulated_gpu.py."""

from itertools import count

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from graphattn import BipartiteGraph, _compiler, ops
from graphattn.decoding import KeyValueCache
from graphattn.functional import (
    choose,
    drive,
    edge_attention,
    edge_feature_attention,
    edge_probability,
)
from graphattn.graphs.cache import GRAPHS as GRAPHS_KEPT
from graphattn.graphs.segments import sum_segments
from graphattn.layers import GraphAttention, GraphTransformerConv, graph_transformer_conv
from graphattn.ops.attention import sdpa
from graphattn.patterns import Causal, Full, SlidingWindow
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg
from graphattn.sources import PatternSource
from tests.clusters import cluster_source
from tests.graphs import GRAPHS, random_graph

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from tests.ops.triton import machine_code  # noqa: E402
from tests.simulated_gpu import (  # noqa: E402
    counted_launches,
    out_of_memory_after,
    simulated_gpu,
    to_gpu,
)

pytestmark = [pytest.mark.filterwarnings('ignore::RuntimeWarning'),
              pytest.mark.skipif(torch.cuda.is_available(), reason='there is a real one')]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', ops.load('triton'))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), simulated_gpu() as waits:
        torch.manual_seed(0)
        yield waits


def types_of(results) -> set[str]:
    return {x.device.type for x in tree_leaves(results) if isinstance(x, Tensor)}


@pytest.mark.slow
@pytest.mark.parametrize('terms, num_features', [('bias and gate', 0), ('dropout', 3)])
@pytest.mark.parametrize('number', range(9))
def test_operators_stay_there_and_wait_for_nothing(gpu, terms, num_features, number):
    cases = machine_code.operators(torch.float32, 16, terms, degree=2, heads=1,
                                   num_features=num_features)
    operator, arguments = [*cases.items()][number]
    arguments = to_gpu(arguments)
    gpu.clear()
    assert types_of(operator(*arguments)) == {'cuda'}
    assert not gpu


@pytest.mark.parametrize('edges', [[[2, 0, 1], [1, 0, 0]], [[0, 1, 2], [0, 0, 1]]],
                         ids=['in any order', 'sorted'])
def test_edges_are_sorted_with_one_wait(gpu, edges):
    edges = torch.tensor(edges)
    there = to_gpu(edges)
    gpu.clear()
    graph, perm = BipartiteGraph.from_edge_index(there, 2, 3, return_perm=True)
    assert gpu.total() == 1
    expected, expected_perm = BipartiteGraph.from_edge_index(edges, 2, 3, return_perm=True)
    assert graph.to('cpu') == expected and graph.is_reordered == expected.is_reordered
    assert perm.tolist() == expected_perm.tolist()


@pytest.mark.parametrize('edges, message', [
    ([[0, 0, 1], [1, 1, 0]], 'each edge only once'), ([[0, 3], [0, 0]], 'edge_index'),
    ([[0, -1], [0, 1]], 'edge_index'), ([[0, 1], [0, 2]], 'edge_index')])
def test_edges_that_cannot_be_sorted_are_refused(gpu, edges, message):
    with pytest.raises(ValueError, match=message):
        BipartiteGraph.from_edge_index(to_gpu(torch.tensor(edges)), 2, 3, return_perm=True)


@pytest.mark.slow
@pytest.mark.parametrize('num_features', [3, 8])
def test_features_in_half_precision_have_the_numbers_of_cpus(gpu, num_features):
    """Features are filled up to a multiple of 8 there."""
    graph = random_graph(12, 12)
    inputs = [*torch.randn(3, 12, 2, 16), torch.randn(graph.num_edges, num_features),
              torch.randn(2, 16, num_features)]
    half = [x.div(2).bfloat16() for x in inputs]
    expected = edge_feature_attention(*half[:3], graph, *half[3:], backend='numba')
    there = [*map(to_gpu, half)]
    out = edge_feature_attention(*there[:3], graph.to('cuda'), *there[3:], backend='triton')
    torch.testing.assert_close(out.on_cpu, expected, rtol=2e-2, atol=2e-2)


def test_features_of_many_tokens_are_projected_in_pieces(gpu, monkeypatch):
    monkeypatch.setattr(drive, '_TOKENS_OF_A_PIECE', 3)
    x, matrices = torch.randn(11, 2, 4), torch.randn(2, 4, 5)
    with torch.enable_grad():
        leaves = [to_gpu(each).requires_grad_() for each in (x, matrices)]
        out = drive._project(*leaves)
        grads = torch.autograd.grad(out.sin().sum(), leaves)
        leaves = [each.clone().requires_grad_() for each in (x, matrices)]
        expected = torch.einsum('qhc,hcs->qhs', *leaves)
        right = torch.autograd.grad(expected.sin().sum(), leaves)
    torch.testing.assert_close([each.on_cpu for each in (out.detach(), *grads)],
                               [expected.detach(), *right])


@pytest.mark.slow
def test_tiles_of_half_precision_wait_for_nothing(gpu):
    graph = random_graph(40, 40, 0.5)
    query, key, value = torch.randn(3, 40, 2, 4).bfloat16()
    expected = edge_attention(query, key, value, graph)
    arguments = (*map(to_gpu, (query, key, value)), graph.to('cuda'))
    gpu.clear()
    out = edge_attention(*arguments)
    assert out.device.type == 'cuda' and not gpu
    torch.testing.assert_close(out.on_cpu, expected, rtol=2e-2, atol=2e-2)


def test_complete_segments_of_any_length_take_one_call(gpu, monkeypatch):
    """Of torch's attention along ragged batches, of which there is none here."""
    calls, lengths = [], (3, 7, 5)

    def one_call(query, key, value, query_ptr, key_ptr, most_queries, most_keys, *, scale):
        calls.append((query_ptr.dtype, most_queries, most_keys))
        segments = [x.split(lengths) for x in (query, key, value)]
        return torch.cat([sdpa.attend_to_segments(
            *(x.transpose(0, 1)[None] for x in own), None, scale=scale, dropout_p=0.,
        )[0].transpose(0, 1) for own in zip(*segments)])

    monkeypatch.setattr(sdpa, 'varlen_attn', one_call)
    full = BipartiteGraph.batch([Full().build(n) for n in lengths])
    inputs = torch.randn(3, 15, 2, 8).bfloat16()
    expected = edge_attention(*inputs, full)
    there = [*map(to_gpu, inputs)]
    out = edge_attention(*there, full.to('cuda'))
    assert calls == [(torch.int32, 7, 7)]
    torch.testing.assert_close(out.on_cpu, expected, rtol=2e-2, atol=2e-2)
    edge_attention(*(x.float() for x in there), full.to('cuda'))
    edge_attention(*there, full.to('cuda'), dropout_p=0.5)
    assert len(calls) == 1


@pytest.mark.parametrize('most, waits', [(2, 1), (3, 0)])
def test_few_edges_are_not_sorted(gpu, monkeypatch, most, waits):
    monkeypatch.setattr(graph_transformer_conv, 'FEW_EDGES', most)
    conv, x = GraphTransformerConv(4, 4, 2), torch.randn(3, 4)
    edge_index = torch.tensor([[2, 0, 1], [1, 0, 0]])
    expected = conv(x, edge_index)
    conv, inputs = conv.to('cuda'), (to_gpu(x), to_gpu(edge_index))
    gpu.clear()
    out = conv(*inputs)
    assert gpu.total() == waits
    torch.testing.assert_close(out.on_cpu, expected)


def order_by_key():
    graph = GRAPHS['ragged_batch']().to('cuda')
    return lambda: graph.csc


def graph_of_a_pattern():
    GRAPHS_KEPT.clear()
    source, x, ptr = window(), *map(to_gpu, (torch.randn(10, 1, 4), torch.tensor([0, 6, 10])))
    return lambda: source(x, x, ptr).csr


@pytest.mark.slow
@pytest.mark.parametrize('new_call', [order_by_key, graph_of_a_pattern])
def test_nothing_is_half_kept_where_memory_runs_out(gpu, new_call):
    expected = all_numbers(new_call()())
    for number in count():
        call, is_done = new_call(), True
        try:
            with out_of_memory_after(number):
                call()
        except torch.OutOfMemoryError:
            is_done = False
        assert all_numbers(call()) == expected
        if is_done:
            break
    assert number > 1


OPERATIONS = {
    'or': lambda graph, other: graph | other,
    'and': lambda graph, other: graph & other,
    'minus': lambda graph, other: graph - other,
    'equality': lambda graph, other: graph == other,
    'transpose': lambda graph, other: graph.transpose(),
    'causal': lambda graph, other: graph.causal(),
    'loops': lambda graph, other: graph.with_self_loops().without_self_loops(),
    'unbatch': lambda graph, other: graph.unbatch(),
    'segment': lambda graph, other: graph.segment(1),
    'batch': lambda graph, other: BipartiteGraph.batch([graph, other]),
    'choice': lambda graph, other: graph.select_edges(graph.isin(other)),
    'order': lambda graph, other: graph.reorder(graph.nearby_order()),
    'degrees': lambda graph, other: [graph.in_degree(), graph.out_degree()],
    'density': lambda graph, other: [graph.density(), graph.density(per_segment=True)],
    'mask': lambda graph, other: BipartiteGraph.from_mask(graph.to_mask()),
    'edge_index': lambda graph, other: BipartiteGraph.from_edge_index(
        graph.edge_index.as_tensor().flip(1), graph.num_queries, return_perm=True),
    'topk': lambda graph, other: BipartiteGraph.from_topk(graph.to_mask().int().topk(2).indices),
    'rows': lambda graph, other: BipartiteGraph.from_csr(*graph.csr, graph.num_keys),
    'networkx': lambda graph, other: sorted(graph.to_networkx().edges),
    'scipy': lambda graph, other: graph.to_scipy().toarray().tolist(),
}


@pytest.mark.parametrize('name', OPERATIONS)
def test_graphs_are_worked_with_there(gpu, name):
    graph, other = (BipartiteGraph.batch([random_graph(size, size, density) for size in (5, 4)])
                    for density in (0.5, 0.4))
    here = OPERATIONS[name](graph, other)
    there = OPERATIONS[name](graph.to('cuda'), other.to('cuda'))
    assert types_of(there) <= {'cuda'}
    assert all_numbers(there) == all_numbers(here)


def all_numbers(tree) -> list:
    return [x.tolist() if isinstance(x, Tensor) else x for x in tree_leaves(tree)]


def test_tiles_are_found_there(gpu):
    mask = GRAPHS['ragged_batch']().to('cuda').to_block_mask(is_compact=True)
    of_pairs = [cell.cell_contents for cell in mask.mask_mod.__closure__]
    held = [part for part in (*mask.as_tuple(), *of_pairs) if isinstance(part, Tensor)]
    assert types_of(held) == {'cuda'}


def model() -> FactorModel:
    member = to_gpu(torch.rand(20, 4))
    return FactorModel(member, to_gpu(torch.rand(2, 4, 4) / 8), member, exploration=0.01,
                       query_ptr=to_gpu(torch.tensor([0, 5, 10, 15, 20])))


def test_models_and_probabilities_wait_for_nothing(gpu):
    gpu.clear()
    drawn_from = model()
    mass = drawn_from.expected_edges()
    assert not gpu and types_of([mass]) == {'cuda'}
    graph = sample_fastrg(drawn_from)
    gpu.clear()
    assert edge_probability(drawn_from, graph).device.type == 'cuda' and not gpu


@pytest.mark.slow
@pytest.mark.parametrize('method, most', [('auto', 2), ('compare', 1), ('torch', 6)])
def test_trials_wait_for_the_number_of_edges(gpu, method, most):
    """Torch's operations wait a few times for each shape of segments; so does the choice."""
    drawn_from = model()
    gpu.clear()
    graph = sample_bernoulli(drawn_from, method=method)
    assert graph.device.type == 'cuda' and gpu.total() <= most, gpu


@pytest.mark.slow
@pytest.mark.parametrize('sample, method', [(sample_fastrg, 'compiled'), (sample_fastrg, 'torch'),
                                            (sample_bernoulli, 'thin')])
def test_draws_wait_for_two_numbers_of_edges(gpu, sample, method):
    drawn_from = model()
    gpu.clear()
    graph = sample(drawn_from, method=method)
    assert graph.device.type == 'cuda' and gpu.total() == 2, gpu


@pytest.mark.slow
def test_few_edges_are_drawn_and_no_pair_is_tried(gpu, monkeypatch):
    monkeypatch.setattr('graphattn.ops.sample.triton.compare', None)
    monkeypatch.setattr('graphattn.ops.sample.triton.draws._CALL', 0)
    member = torch.full((150, 2), 0.05)
    few = FactorModel(to_gpu(member), to_gpu(torch.eye(2)), to_gpu(member), exploration=0.002)
    num_edges, expected = sample_bernoulli(few).num_edges, 150**2 * 0.007
    assert abs(num_edges - expected) < 4 * expected**0.5


@pytest.mark.parametrize('sample, method', [(sample_fastrg, 'compiled'),
                                            (sample_bernoulli, 'thin')])
def test_draws_of_all_heads_and_segments_take_few_launches(gpu, sample, method):
    """A GPU waits for the host, which needs longer for a launch than small kernels take."""
    drawn_from = model()
    with counted_launches() as launches:
        sample(drawn_from, method=method)
    assert launches.total() <= 25, launches


def test_draws_that_registers_do_not_hold_are_drawn_by_torch(gpu):
    rates = FactorModel(to_gpu(torch.full((3, 1), 1e6)), to_gpu(torch.eye(1)),
                        to_gpu(torch.ones(1, 1)))
    assert sample_fastrg(rates).density() == 1


def test_sums_of_long_segments(gpu):
    """There they are summed piece by piece."""
    value, ptr = torch.rand(300, 2), torch.tensor([0, 0, 3, 130, 192, 192, 300])
    there = sum_segments(to_gpu(value), to_gpu(ptr))
    torch.testing.assert_close(there.on_cpu, sum_segments(value, ptr))


def window() -> PatternSource:
    return PatternSource(SlidingWindow(1))


def test_sources_build_there_and_keep_what_they_build(gpu):
    GRAPHS_KEPT.clear()
    source, x = window(), to_gpu(torch.randn(10, 1, 4))
    totals = []
    for lengths in ([0, 6, 10], [0, 6, 10], [0, 4, 10]):
        ptr = to_gpu(torch.tensor(lengths))
        gpu.clear()
        graph = source(x, x, ptr)
        totals.append(gpu.total())
        assert types_of(graph.csr) == {'cuda'} and graph.is_square and graph.segments.num_pairs
    looks = 1  # at ptr
    assert totals == [looks + 2 * 3, looks, looks] and gpu.total() == looks, totals


@pytest.mark.slow
@pytest.mark.parametrize('causal', [False, True])
def test_clusters_list_their_edges_there(gpu, causal):
    query, key = torch.randn(2, 10, 3, 4)
    ptr, source = torch.tensor([0, 6, 10]), cluster_source(3, 4)
    expected = source(query, key, ptr, causal=causal)
    there = source.to('cuda')
    found = there(to_gpu(query), to_gpu(key), to_gpu(ptr), causal=causal)  # builds the pattern
    gpu.clear()
    found = there(to_gpu(query), to_gpu(key), to_gpu(ptr), causal=causal)
    assert gpu.total() <= 25, gpu
    assert types_of(found.csr) == {'cuda'}
    assert [part.on_cpu.tolist() for part in found.csr] == [part.tolist() for part in expected.csr]


@pytest.mark.slow
def test_numbers_that_were_written_unseen_are_read(gpu):
    """A broadcast writes so, which torch counts as no change."""
    layer, x = GraphAttention(8, 2, window()).to('cuda').eval(), torch.randn(10, 8)
    ptr = to_gpu(torch.tensor([0, 6, 10]))
    layer(to_gpu(x), ptr)
    ptr.on_cpu.data[1] = 3
    expected = layer(to_gpu(x), to_gpu(torch.tensor([0, 3, 10])))
    torch.testing.assert_close(layer(to_gpu(x), ptr).on_cpu, expected.on_cpu)


@torch.no_grad()
def test_tokens_are_decoded_there(gpu):
    attention = GraphAttention(8, 2, PatternSource(SlidingWindow(1) & Causal()))
    x, steps = torch.randn(6, 8), [torch.tensor([0, 4]), torch.tensor([0, 2])]
    expected = attention(x, torch.tensor([0, 6]))
    attention, cache, parts = attention.to('cuda'), KeyValueCache(6), x.split([4, 2])
    found = [attention(to_gpu(part), ptr, placement=cache.step(ptr))
             for part, ptr in zip(parts, map(to_gpu, steps))]
    torch.testing.assert_close(torch.cat(found).on_cpu, expected)


def test_edges_of_the_data_elsewhere_are_refused(gpu):
    source, x = window() | torch.tensor([[0], [1]]), to_gpu(torch.randn(6, 1, 4))
    with pytest.raises(ValueError, match=r"'edges' must.*\(got cpu\)"):
        source(x, x, to_gpu(torch.tensor([0, 6])))


def test_heads_too_wide_are_refused_by_name_and_taken_by_auto(gpu):
    graph = random_graph(4, 4).to('cuda')
    x = to_gpu(torch.randn(4, 1, 300))
    with pytest.raises(ValueError, match=r"backend 'triton' .*at most 256 channels .*got 300"):
        edge_attention(x, x, x, graph, backend='triton')
    assert edge_attention(x, x, x, graph).shape == (4, 1, 300)


def test_gpus_that_are_too_old_are_refused_by_name_and_have_gather(gpu, monkeypatch):
    _compiler._is_recent.cache_clear()
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: (7, 5))
    graph, x = random_graph(4, 4).to('cuda'), to_gpu(torch.randn(4, 1, 4))
    try:
        with pytest.raises(ValueError, match="backend 'triton' does not run on cuda"):
            edge_attention(x, x, x, graph, backend='triton')
        assert edge_attention(x, x, x, graph).shape == (4, 1, 4)
    finally:
        _compiler._is_recent.cache_clear()


@pytest.mark.parametrize('there', ['query', 'graph', 'edge_bias'])
def test_tensors_of_two_devices_are_refused(gpu, there):
    graph, x = random_graph(6, 6), torch.randn(6, 2, 4)
    arguments = {'query': x, 'key': x, 'value': x, 'graph': graph,
                 'edge_bias': torch.zeros(graph.num_edges)}
    moved = arguments[there]
    arguments[there] = moved.to('cuda')
    with pytest.raises(ValueError, match='must be on'):
        edge_attention(**arguments)
