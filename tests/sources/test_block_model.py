"""The block model: distribution, density, gradients, variants (SBM-Transformer, Sec. 4, App. C)."""

import copy
import io
import pickle

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention, edge_probability
from graphattn.layers import fold_heads
from graphattn.patterns import SlidingWindow
from graphattn.samplers import density_penalty, straight_through
from graphattn.sources import BlockModelSource

PTR = torch.tensor([0, 300, 500])


def inputs(heads=2, channels=16, nodes=500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, nodes, heads, channels, generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize('preset', ['paper', 'repo'])
def test_a_quarter_of_the_pairs_are_edges_at_first(preset):
    densities = []
    for seed in range(4):
        torch.manual_seed(seed)
        source = BlockModelSource(heads=2, head_channels=16, preset=preset).eval()
        densities.append(source(*inputs(seed=seed), PTR).density())
    assert sum(densities) / 4 == pytest.approx(0.25, abs=0.02 if preset == 'paper' else 0.002)


def test_clusters_of_the_repository_preset_start_similar():
    source = BlockModelSource(heads=2, head_channels=32, clusters=128, preset='repo').eval()
    prob = source.block_model(*inputs(channels=32), PTR).expectation().detach()
    inside = prob[:300, :300]
    assert float((inside - 0.25).abs().max()) < 0.004
    assert float(source.centroid.detach().std()) == pytest.approx((2 / (128 * 32))**0.5, rel=0.1)


def test_distribution_is_the_papers_equations():
    source = BlockModelSource(heads=2, head_channels=4, clusters=3).double().eval()
    query, key = inputs(channels=4, nodes=7).double()
    prob = source.block_model(query, key, torch.tensor([0, 7])).expectation()
    for h in range(2):
        def mlp(x, h=h):
            return ((x @ source.weight1[h] + source.bias1[h]).relu() @ source.weight2[h]
                    + source.bias2[h])
        cluster = source.centroid[h]
        mixing = (cluster @ cluster.t()).flatten().softmax(0).view(3, 3)                # Eq. 5
        query_membership = torch.sigmoid(mlp(query[:, h]) @ cluster.t())                # Eq. 6
        key_membership = torch.sigmoid(mlp(key[:, h]) @ cluster.t())                    # Eq. 7
        expected = query_membership @ mixing @ key_membership.t()
        torch.testing.assert_close(prob[7 * h:7 * h + 7, 7 * h:7 * h + 7], expected)
    assert not prob[:7, 7:].any()


@pytest.mark.parametrize('distribution, expected', [
    ('bernoulli', lambda p: p), ('poisson', lambda p: 1 - (-p).exp())])
def test_density_follows_the_distribution(distribution, expected):
    source = BlockModelSource(heads=2, head_channels=16, distribution=distribution).eval()
    x = inputs()
    prob = source.block_model(*x, PTR).expectation()
    pairs = 2 * (300**2 + 200**2)
    expected_density = float(expected(prob).detach().sum()) / pairs
    assert source(*x, PTR).density() == pytest.approx(expected_density, abs=0.004)


def test_can_reach_full_attention_as_figure_4_claims():
    source = BlockModelSource(heads=2, head_channels=16).eval()
    with torch.no_grad():
        source.centroid.fill_(10.)
        source.weight2.fill_(0.)
        source.bias2.fill_(10.)
    assert source(*inputs(), PTR).density() == 1.
    source.distribution = 'poisson'
    assert source(*inputs(), PTR).density() == pytest.approx(0.632, abs=0.003)


def test_exploration_acts_in_training_only():
    source = BlockModelSource(heads=2, head_channels=16, exploration=0.2)
    with torch.no_grad():
        source.bias2.fill_(0.)
        source.weight2.fill_(0.)
        source.centroid.mul_(0.01)
    assert source(*inputs(), PTR).density() == pytest.approx(0.45, abs=0.01)
    assert source.eval()(*inputs(), PTR).density() == pytest.approx(0.25, abs=0.01)
    assert source.block_model(*inputs(), PTR).exploration == 0.


@pytest.mark.parametrize('preset', ['paper', 'repo'])
def test_gradients_reach_clusters_and_mlps(preset):
    torch.manual_seed(0)
    source = BlockModelSource(heads=2, head_channels=16, preset=preset)
    query, key = inputs()
    graph = source(query, key, PTR)
    query, key, value = fold_heads(query), fold_heads(key), fold_heads(key.sin())
    out = edge_attention(query, key, value, graph, **source.logit_terms(graph))
    out.sin().sum().backward()
    for name, parameter in source.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().sum()) > 0, name


@pytest.mark.parametrize('distribution', ['bernoulli', 'poisson'])
def test_edges_carry_their_probability_in_training_only(distribution):
    source = BlockModelSource(heads=2, head_channels=16, distribution=distribution)
    x = inputs()
    graph = source(*x, PTR)
    model = source.block_model(*x, PTR)
    torch.testing.assert_close(graph.edge_prob, edge_probability(model, graph))
    assert graph.edge_prob.requires_grad
    assert source.eval()(*x, PTR).edge_prob is None
    with torch.no_grad():
        assert source.train()(*x, PTR).edge_prob is None


def test_unread_probabilities_are_not_computed(monkeypatch):
    given = []

    def counted(*args, known=None):
        given.append(known)
        return edge_probability(*args, known=known)

    monkeypatch.setattr('graphattn.sources.sampled_graph.probability_of_edges', counted)
    source = BlockModelSource(heads=2, head_channels=16, distribution='poisson')
    graph = source(*inputs(), PTR)
    term = source.logit_terms(graph)['edge_bias'].sum() - 3 * density_penalty(graph)
    unread = torch.autograd.grad(term, source.centroid, retain_graph=True)
    assert given and all(known.stride() == (0,) for known in given)

    original = source(*inputs(), PTR)
    saved = pickle.dumps(original)
    torch.save(original, of_torch := io.BytesIO())
    of_torch.seek(0)
    with torch.no_grad():
        assert torch.equal(graph.edge_prob, copy.deepcopy(graph).edge_prob)
        for copied in (pickle.loads(saved), torch.load(of_torch, weights_only=True)):
            assert copied == original and copied.edge_prob.min() > 0
            assert type(copied) is BipartiteGraph
    assert graph.edge_prob.requires_grad
    term = source.logit_terms(graph)['edge_bias'].sum() - 3 * density_penalty(graph)
    torch.testing.assert_close(torch.autograd.grad(term, source.centroid), unread)
    unread = source(*inputs(), PTR)
    assert unread.select_edges(torch.arange(unread.num_edges) < 5).edge_prob.shape == (5,)


@pytest.mark.parametrize('preset', ['paper', 'repo'])
@pytest.mark.parametrize('estimator', ['one-sided', 'paper', 'repo'])
def test_estimators_are_those_of_the_samplers(preset, estimator):
    source = BlockModelSource(heads=2, head_channels=16, preset=preset, estimator=estimator)
    graph = source(*inputs(), PTR)
    prob = graph.edge_prob.detach().requires_grad_()
    graph = graph.with_edge_prob(prob)
    (name, values), = source.logit_terms(graph).items()
    (term, others), = straight_through(prob, estimator).items()
    grad = torch.linspace(-2, 2, graph.num_edges)
    assert name == term
    assert all(map(torch.equal, torch.autograd.grad(values, prob, grad),
                   torch.autograd.grad(others, prob, grad)))


def test_fixed_edges_are_always_present_with_probability_one():
    for radius in (0, 2):
        fixed = SlidingWindow(radius)
        source = BlockModelSource(heads=2, head_channels=16, fixed=fixed)
        graph = source(*inputs(), PTR)
        distance = (graph.query - graph.key).abs()
        in_window = distance <= radius
        assert int(in_window.sum()) == 2 * (fixed.build(300).num_edges + fixed.build(200).num_edges)
        assert bool((graph.edge_prob[in_window] == 1).all())
        assert float(graph.edge_prob[~in_window].detach().max()) < 1
        assert graph.density() == pytest.approx(0.26, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_queries_have_probabilities_in_single_precision(dtype):
    torch.manual_seed(0)
    source = BlockModelSource(heads=2, head_channels=16)
    query, key = inputs()
    expected = source.block_model(query, key, PTR).expectation()
    with torch.autocast('cpu', dtype):
        model = source.block_model(query.to(dtype), key.to(dtype), PTR)
        graph = source(query.to(dtype), key.to(dtype), PTR)
    factors = (model.query_factor, model.mixing, model.key_factor, graph.edge_prob)
    assert all(factor.dtype == torch.float32 for factor in factors)
    torch.testing.assert_close(model.expectation(), expected, atol=0.02, rtol=0)
    graph.edge_prob.sum().backward()
    assert float(source.centroid.grad.abs().sum()) > 0


@pytest.mark.slow
def test_compiled_code_breaks_once_to_draw():
    torch.compiler.reset()
    source = BlockModelSource(2, 16, fixed=SlidingWindow(0)).eval()
    query, key = inputs()
    explanation = torch._dynamo.explain(lambda query, key: source(query, key, PTR))(query, key)
    reason, = explanation.break_reasons
    assert 'the edges depend on the values' in str(reason)
