"""edge_probability, pair_attention, and what edge_attention refuses; its meaning is tested in
kernels/."""

import copy
import math
import sys

import pytest
import torch

from graphattn import BipartiteGraph, ops
from graphattn.functional import edge_attention, edge_probability, pair_attention
from graphattn.graphs.pair_layout import FreeLayout
from graphattn.graphs.pair_mask import PairMask
from graphattn.samplers import FactorModel, sample_bernoulli
from tests.graphs import random_graph

# edge_probability ####################################################################


def factor_model(num_queries: int, num_keys: int, num_heads: int | None = None,
                 dtype: torch.dtype = torch.float64, **kwargs) -> FactorModel:
    generator = torch.Generator().manual_seed(0)
    heads = () if num_heads is None else (num_heads,)
    shapes = (num_queries, 3), (*heads, 3, 3), (num_keys, 3)
    factors = [torch.rand(shape, generator=generator, dtype=torch.float64) / 3
               for shape in shapes]
    return FactorModel(*(factor.to(dtype).requires_grad_() for factor in factors), **kwargs)


MODELS_AND_GRAPHS = {
    'square': (lambda: factor_model(7, 7), lambda: random_graph(7, 7)),
    'rectangular': (lambda: factor_model(4, 9), lambda: random_graph(4, 9)),
    'no_edges': (lambda: factor_model(4, 9), lambda: random_graph(4, 9, density=0.)),
    'one_head': (lambda: factor_model(4, 9, 1), lambda: random_graph(4, 9)),
    'heads': (lambda: factor_model(12, 15, 3),
              lambda: BipartiteGraph.batch([random_graph(4, 5, seed=seed) for seed in range(3)])),
}


@pytest.mark.parametrize('model, graph', MODELS_AND_GRAPHS.values(), ids=MODELS_AND_GRAPHS)
def test_edge_probability_is_the_expectation_on_the_edges(model, graph):
    model, graph = model(), graph()
    edge_prob = edge_probability(model, graph)
    expected = model.expectation()[graph.query, graph.key]
    assert edge_prob.shape == (graph.num_edges,)
    torch.testing.assert_close(edge_prob, expected, rtol=1e-12, atol=1e-12)

    factors = (model.query_factor, model.mixing, model.key_factor)
    cotangent = torch.linspace(-1, 1, graph.num_edges, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(edge_prob @ cotangent, factors),
                               torch.autograd.grad(expected @ cotangent, factors),
                               rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_edge_probability_within_rounding(dtype):
    graph = random_graph(7, 7)
    model = factor_model(7, 7, dtype=dtype)
    exact = FactorModel(*(factor.detach().double() for factor in (
        model.query_factor, model.mixing, model.key_factor)))
    torch.testing.assert_close(edge_probability(model, graph).double(),
                               edge_probability(exact, graph), rtol=torch.finfo(dtype).eps * 8,
                               atol=0.)


def factors(num_queries, num_keys, clusters):
    return [torch.rand(size, clusters, dtype=torch.double).requires_grad_()
            for size in (num_queries, num_keys)]


@pytest.mark.parametrize('clusters', [5, 64, 100])  # in one piece, and in groups
@pytest.mark.parametrize('segments', [{}, {'query_ptr': [0, 0, 13, 40], 'key_ptr': [0, 5, 20, 50]}])
def test_edge_probability_that_is_known(segments, clusters):
    query, key = factors(40, 50, clusters)
    mixing = torch.full((clusters, clusters), clusters**-2., dtype=torch.double)
    model = FactorModel(query, mixing, key, exploration=0.05,
                        **{name: torch.tensor(ptr) for name, ptr in segments.items()})
    graph = sample_bernoulli(model)
    weight = torch.randn(graph.num_edges, dtype=torch.double)
    expected = model.expectation()[graph.query, graph.key] - 0.05
    for known in (None, expected.detach()):
        edge_prob = edge_probability(model, graph, known=known)
        torch.testing.assert_close(edge_prob, expected)
        for ours, theirs in zip(*(torch.autograd.grad((prob * weight).sum(), (query, key),
                                                      retain_graph=True)
                                  for prob in (edge_prob, expected))):
            torch.testing.assert_close(ours, theirs)


def test_edge_probability_refuses_other_segments_of_the_same_size():
    graph = random_graph(4, 4)
    with pytest.raises(ValueError, match="same segments .got query_ptr .0, 2, 4..*.0, 4.."):
        edge_probability(factor_model(4, 4, num_heads=2), graph)


def test_edge_probability_refuses_another_device():
    with pytest.raises(ValueError, match="'model' must.*meta,.*graph.*got cpu"):
        edge_probability(factor_model(5, 6), random_graph(5, 6).to('meta'))
    factors = [torch.empty(size, 2, device='meta') for size in (5, 2, 6)]
    with pytest.raises(ValueError, match="'query_ptr' must .*'meta'"):
        edge_probability(FactorModel(*factors), random_graph(5, 6).to('meta'))


# edge_attention ######################################################################


NUM_QUERIES, NUM_KEYS, HEADS = 3, 4, 2
GRAPH = random_graph(NUM_QUERIES, NUM_KEYS, 0.5)
EDGES = GRAPH.num_edges


def attend(**changes) -> torch.Tensor:
    """A valid call, but for ``changes``."""
    arguments = {'query': torch.randn(NUM_QUERIES, HEADS, 5),
                 'key': torch.randn(NUM_KEYS, HEADS, 5),
                 'value': torch.randn(NUM_KEYS, HEADS, 6), 'graph': GRAPH}
    return edge_attention(**{**arguments, **changes})


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


# What is wrong in itself is in tests/test_arguments.py.
REFUSED = {
    'graph': ({'graph': GRAPH.edge_index}, TypeError, "'graph' must be .*got EdgeIndex"),
    'keys': ({'key': zeros(3, 2, 5)}, ValueError, "'key' must.*4.*.got"),
    'kv_heads': ({'key': zeros(4, 3, 5)}, ValueError, "'key' must.*heads.*'query'.*3"),
    'value_heads': ({'value': zeros(4, 3, 6)}, ValueError, r"'value' must.*\[4, 2, channels\]"),
    'channels': ({'key': zeros(4, 2, 7)}, ValueError, r"'key' must.*5\],.*'query'.*, 7\)"),
    'bias_edges': ({'edge_bias': zeros(EDGES + 1)}, ValueError, "'edge_bias' must have shape"),
    'sink_heads': ({'sink': zeros(HEADS + 1)}, ValueError, r"'sink' must.*\[2\],.*got"),
    'graph_device': ({'graph': GRAPH.to('meta')}, ValueError, "'query' must.*meta,.*got cpu"),
    'scale_infinite': ({'scale': float('inf')}, ValueError, r"'scale' must be finite \(got inf\)"),
    'softcap_zero': ({'softcap': 0.}, ValueError, "'softcap' must be positive"),
    'backend': ({'backend': 'triton_magic'}, ValueError, "'backend' must be one of 'auto'"),
}


@pytest.mark.parametrize('changes, error, match', REFUSED.values(), ids=REFUSED)
def test_refuses(changes, error, match):
    with pytest.raises(error, match=match):
        attend(**changes)


@pytest.mark.parametrize('package', ['torch_scatter', 'torch_sparse'])
def test_requested_backends_do_not_fall_back(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, 'graphattn.ops.attention.gather_ext', raising=False)
    monkeypatch.delitem(ops._LOADED, 'gather_ext', raising=False)
    with pytest.raises(ImportError, match='torch-scatter and torch-sparse: pip install'):
        attend(backend='gather_ext')


def test_sparse_tensor_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, 'torch_sparse', None)
    with pytest.raises(ImportError, match='to_sparse_tensor.*torch-sparse'):
        GRAPH.to_sparse_tensor()


def test_returned_tensors_are_not_the_stored_ones():
    ptr, edges = torch.tensor([0, 3, 5]), torch.tensor([[0, 1, 2, 3], [0, 1, 1, 4]])
    graph = BipartiteGraph(edges, 5, query_ptr=ptr)
    expected = copy.deepcopy(graph)
    for tensor in (ptr, edges, graph.key, graph.query, graph.edge_index.as_tensor(), graph.indptr,
                   graph.query_ptr, graph.key_ptr, graph.in_degree(), graph.out_degree()):
        tensor.numpy()[...] = 60_000  # which torch does not see
    assert graph == expected


MANY_KEYS = 2**31 + 10


def test_more_keys_than_32_bits_count():
    graph = BipartiteGraph.from_edge_index(torch.tensor([[5, MANY_KEYS - 1], [0, 0]]), 1, MANY_KEYS)
    key = torch.ones(1, 1, 1).expand(MANY_KEYS, 1, 1)
    query = torch.ones(1, 1, 1)
    assert edge_attention(query, key, key, graph, backend='gather').item() == 1


# pair_attention ######################################################################


PTR = torch.tensor([0, 4, 4, 6, 10, 11, 16])


def tokens(num_tokens: int = 16, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, num_tokens, 2, 3, generator=generator, dtype=torch.float64)
    return [part.to(dtype).requires_grad_() for part in x]


def pair_mask(**options) -> PairMask:
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(2, 25, dtype=torch.double, generator=generator)
    return PairMask(values.requires_grad_(), FreeLayout(5), **options)


def by_definition(query, key, value, ptr, mask, scale):
    """Eq. 5 of SparseBERT for one sequence and head after the other."""
    out = []
    for start, end in zip(ptr.tolist(), ptr.tolist()[1:]):
        heads = []
        for head in range(mask.heads):
            q, k, v = (x[start:end, head] for x in (query, key, value))
            dense = mask.dense(end - start)[head]
            weight = (q @ k.t() * scale - mask.logit_drop * (1 - dense)).exp()
            heads.append(weight / weight.sum(1, keepdim=True).clamp(min=1e-30) @ v)
        out.append(torch.stack(heads, dim=1))
    return torch.cat(out)


@pytest.mark.parametrize('ptr', [PTR, torch.tensor([0, 5, 10, 15, 16]), torch.tensor([0, 0])],
                         ids=lambda ptr: f'{ptr.tolist()}')
def test_pair_attention_is_equation_5(ptr):
    query, key, value = tokens(num_tokens=int(ptr[-1]))
    mask = pair_mask(logit_drop=4.)
    for scale in (None, 0.3):
        out = pair_attention(query, key, value, ptr, mask, scale=scale)
        used = 3**-0.5 if scale is None else scale
        expected = by_definition(query, key, value, ptr, mask, used)
        torch.testing.assert_close(out, expected)
        inputs = query, key, value, mask.values
        for ours, theirs in zip(torch.autograd.grad(out.sin().sum(), inputs, retain_graph=True),
                                torch.autograd.grad(expected.sin().sum(), inputs)):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize('hops', [1, 2])
def test_multiplied_weights_are_equation_4(hops):
    (query, key, value), mask = tokens(), pair_mask()
    out = pair_attention(query, key, value, PTR, mask, multiply=True, hops=hops, teleport=0.)
    expected = []
    for start, end in zip(PTR.tolist(), PTR.tolist()[1:]):
        q, k, z = (x[start:end] for x in (query, key, value))
        weight = (torch.einsum('ihc,jhc->hij', q, k) * 3**-0.5).softmax(dim=-1)
        for _ in range(hops):
            z = torch.einsum('hij,jhc->ihc', weight * mask.dense(end - start), z)
        expected.append(z)
    inputs, expected = (query, key, value, mask.values), torch.cat(expected)
    for ours, theirs in zip((out, *torch.autograd.grad(out.sin().sum(), inputs)),
                            (expected, *torch.autograd.grad(expected.sin().sum(), inputs))):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize('logit_drop', [1., 10., 30.])
def test_a_soft_value_of_zero_leaves_a_weight_of_e_to_the_minus_logit_drop(logit_drop):
    values = torch.ones(1, 5, 5, dtype=torch.double)
    values[:, :, 2] = 0.
    mask = PairMask(values.flatten(1), FreeLayout(5), logit_drop=logit_drop)
    equal_scores = torch.zeros(5, 1, 2, dtype=torch.double)
    weight = pair_attention(equal_scores, equal_scores, torch.eye(5).double().unsqueeze(1),
                            torch.tensor([0, 5]), mask).squeeze(1)
    torch.testing.assert_close(weight[:, 2] / weight[:, 0],
                               torch.full((5,), math.exp(-logit_drop)).double())


@pytest.mark.parametrize('hops', [1, 2])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('logit_drop', [1e4, 1e5])
def test_small_differences_of_a_large_bias_count_in_half_precision(logit_drop, dtype, hops):
    values = 0.3 + torch.rand(2, 25, generator=torch.Generator().manual_seed(0)) * 2 / logit_drop
    mask = PairMask(values, FreeLayout(5), logit_drop=logit_drop)
    exact_mask = PairMask(values.double(), FreeLayout(5), logit_drop=logit_drop)
    exact = pair_attention(*tokens(), PTR, exact_mask, hops=hops)
    out = pair_attention(*tokens(dtype=dtype), PTR, mask, hops=hops)
    torch.testing.assert_close(out.double(), exact, atol=0.05, rtol=0)


@pytest.mark.parametrize('size', [1e3, 1e4, 1e6, 5e7])
def test_large_logits_that_are_exact_have_exact_weights_under_a_mask(size):
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 5, 2, 4, generator=generator)
    query, key = query.sign() * size, torch.ones_like(key)
    key[::3] = -1.
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in (query, key, value)]
        mask = PairMask(torch.ones(2, 25, dtype=dtype), FreeLayout(5))
        out = pair_attention(*leaves, torch.tensor([0, 5]), mask, scale=1.)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for result, expected in zip(*results):
        largest = float(expected.detach().abs().max())
        atol = 1e-6 * max(1., largest, size * (expected is results[1][2]))
        torch.testing.assert_close(result.double(), expected, atol=atol, rtol=0)
