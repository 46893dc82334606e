import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.samplers import density_penalty, straight_through
from tests.graphs import random_graph


@pytest.mark.parametrize('estimator, of_prob', [
    ('paper', lambda grad: grad), ('one-sided', lambda grad: grad.clamp(max=0)),
    ('repo', lambda grad: grad.clamp(-1, 1))])
def test_the_gradient_of_a_probability_is_made_of_that_of_its_term(estimator, of_prob):
    edge_prob, grad = torch.rand(9, requires_grad=True), torch.linspace(-2, 2, 9)
    term, = straight_through(edge_prob, estimator).values()
    assert torch.equal(torch.autograd.grad(term, edge_prob, grad)[0], of_prob(grad))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize('estimator, name, value', [
    ('one-sided', 'edge_bias', 0.), ('paper', 'edge_gate', 1.), ('repo', 'edge_bias', 0.),
])
def test_the_forward_pass_is_exact(estimator, name, value, dtype):
    edge_prob = torch.rand(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    for prob in (edge_prob, edge_prob.clone().requires_grad_()):
        (key, factor), = straight_through(prob, estimator).items()
        assert key == name and factor.dtype == dtype
        assert (factor == value).all()


# density_penalty #####################################################################


def ragged_graph(dtype):
    graph = BipartiteGraph.batch([
        BipartiteGraph.from_mask(torch.tensor([[1, 0], [1, 1], [0, 0]]).bool()),
        BipartiteGraph.from_mask(torch.zeros(0, 2).bool()),
        BipartiteGraph.from_mask(torch.ones(1, 5).bool()),
        BipartiteGraph.from_mask(torch.zeros(2, 2).bool())])
    edge_prob = torch.full((graph.num_edges,), 0.3, dtype=dtype, requires_grad=True)
    return graph.with_edge_prob(edge_prob), edge_prob


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64])
def test_density_penalty(dtype):
    graph, edge_prob = ragged_graph(dtype)
    penalty = density_penalty(graph)
    assert penalty.shape == ()
    assert penalty.item() == pytest.approx((3 / 6 + 0 + 5 / 5 + 0) / 4)
    assert penalty.item() == pytest.approx(graph.density(per_segment=True).mean().item())
    gradient, = torch.autograd.grad(penalty, edge_prob)
    expected = torch.tensor([1 / (6 * 4)] * 3 + [1 / (5 * 4)] * 5, dtype=dtype)
    torch.testing.assert_close(gradient, expected)


def test_density_penalty_of_a_large_segment_survives_half_precision():
    mask = torch.zeros(4096, 4096, dtype=torch.bool)
    mask[:, 0] = True
    graph = BipartiteGraph.from_mask(mask).with_edge_prob(torch.ones(4096, dtype=torch.half))
    assert density_penalty(graph).item() == pytest.approx(1 / 4096)


@pytest.mark.parametrize('estimator, name', [('paper', 'edge_gate'), ('repo', 'edge_bias')])
def test_one_number_stands_for_all_edges(estimator, name):
    graph = random_graph(4, 6)
    edge_prob = torch.rand(graph.num_edges, dtype=torch.double, requires_grad=True)
    values = straight_through(edge_prob, estimator)[name]
    assert values.untyped_storage().nbytes() == edge_prob.itemsize and values.requires_grad
    query = torch.randn(4, 2, 8, dtype=torch.double).requires_grad_()
    key = torch.randn(6, 2, 8, dtype=torch.double)
    for options in ({}, {'hops': 2, 'teleport': 0.1}):
        if options:
            graph = BipartiteGraph.from_edge_index(graph.edge_index[:, graph.key < 4], 4)
            values = straight_through(edge_prob[:graph.num_edges], estimator)[name]
            key = key[:4]
        grads = [torch.autograd.grad(edge_attention(
            query, key, key, graph, backend=backend, **{name: given}, **options).sin().sum(),
            (query, edge_prob), retain_graph=True)
            for backend, given in (('numba', values), ('numba', values + 0), ('gather', values))]
        for other in grads[1:]:
            torch.testing.assert_close(grads[0], other)


@pytest.mark.parametrize('graph, error, match', [
    (None, TypeError, r"'graph' must be a BipartiteGraph \(got NoneType\)"),
    (BipartiteGraph.from_mask(torch.ones(2, 2).bool()), ValueError,
     r"'graph' must have edge_prob"),
])
def test_density_penalty_bad_input(graph, error, match):
    with pytest.raises(error, match=match):
        density_penalty(graph)


@pytest.mark.parametrize('estimator', ['paper', 'one-sided', 'repo'])
def test_the_gradient_at_a_term_is_that_of_what_follows(estimator):
    edge_prob = torch.tensor([0.2, 0.9], requires_grad=True)
    (term,) = straight_through(edge_prob, estimator).values()
    grad, = torch.autograd.grad((term * torch.tensor([3., -4.])).sum(), term)
    assert grad.tolist() == [3., -4.]
