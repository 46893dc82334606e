"""Each operation on numbers that can be checked by hand, by every backend that has it.

Query 0 attends to keys 0 and 1, query 1 to keys 1 and 2.
"""

import math

import pytest
import torch

from graphattn import BipartiteGraph, ops
from graphattn.functional import attention_diffusion, attention_weights, edge_attention
from graphattn.ops.sample import reference
from graphattn.samplers import FactorModel
from tests.ops.test_backends import BACKENDS, ON_CPUS, skip_if_missing

GRAPH = BipartiteGraph(torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]]), 2, 3)


def column(*numbers: float) -> torch.Tensor:
    """Return vectors of one channel, of one head."""
    return torch.tensor(numbers, dtype=torch.double).view(-1, 1, 1)


# Exponentials of the dot products are 1, 3 and 1, of which query 0 has 1 : 3 and query 1 has 3 : 1.
QUERY, KEY, VALUE = column(1, 1), column(0, math.log(3), 0), column(4, 8, 20)


def assert_is(actual: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual.flatten(), torch.tensor(expected, dtype=torch.double))


@pytest.mark.parametrize('backend', [name for name in BACKENDS if name != 'gather_ext'
                                     and ops.load(name).edge_dot is not None])
def test_dot_products(backend):
    query = torch.tensor([[[1., 2.]], [[0., 5.]]], dtype=torch.double)
    key = torch.tensor([[[3., 4.]], [[1., 0.]], [[2., 1.]]], dtype=torch.double)
    assert_is(ops.load(backend).edge_dot(query, key, GRAPH), 11, 1, 0, 5)


@pytest.mark.parametrize('backend', BACKENDS)
def test_weights(backend):
    options = {'graph': GRAPH, 'scale': 1., 'backend': skip_if_missing(backend)}
    assert_is(attention_weights(QUERY, KEY, **options), 1 / 4, 3 / 4, 3 / 4, 1 / 4)
    bias = torch.tensor([math.log(3), 0., 0., -torch.inf], dtype=torch.double)
    assert_is(attention_weights(QUERY, KEY, **options, edge_bias=bias), 1 / 2, 1 / 2, 1, 0)
    gate = torch.tensor([5., 0., 2., 5.], dtype=torch.double)
    assert_is(attention_weights(QUERY, KEY, **options, edge_gate=gate), 1 / 2, 1 / 2, 9 / 10,
              1 / 10)
    sink = torch.tensor([math.log(4)], dtype=torch.double)
    assert_is(attention_weights(QUERY, KEY, **options, sink=sink), 1 / 8, 3 / 8, 3 / 8, 1 / 8)
    odds = math.exp(2 * math.tanh(math.log(3) / 2))
    assert_is(attention_weights(QUERY, KEY, **options, softcap=2.), 1 / (1 + odds),
              odds / (1 + odds), odds / (1 + odds), 1 / (1 + odds))


@pytest.mark.parametrize('backend', BACKENDS)
def test_sums_by_weights(backend):
    weight = torch.tensor([[2.], [1.], [0.], [3.]], dtype=torch.double)
    assert_is(ops.load(skip_if_missing(backend)).weighted_sum(weight, VALUE, GRAPH), 16, 60)


@pytest.mark.parametrize('backend', ON_CPUS)
def test_attention(backend):
    out = edge_attention(QUERY, KEY, VALUE, GRAPH, scale=1., backend=skip_if_missing(backend))
    assert_is(out, 4 / 4 + 8 * 3 / 4, 8 * 3 / 4 + 20 / 4)


@pytest.mark.parametrize('backend', BACKENDS)
def test_diffusion(backend):
    """Token 0 attends to both by halves, token 1 to token 0 alone: (8, 0) becomes (4, 8), by half
    mixed (6, 4); and that (5, 6), by half mixed (6.5, 3)."""
    graph = BipartiteGraph(torch.tensor([[0, 1, 0], [0, 0, 1]]), 2)
    alpha = torch.tensor([[.5], [.5], [1.]], dtype=torch.double)
    options = {'teleport': .5, 'backend': skip_if_missing(backend)}
    assert_is(attention_diffusion(alpha, column(8, 0), graph, hops=1, **options), 6, 4)
    assert_is(attention_diffusion(alpha, column(8, 0), graph, hops=2, **options), 6.5, 3)


@pytest.mark.parametrize('distribution, certain',
                         [('bernoulli', 1.), ('poisson', 1 - math.exp(-1))])
def test_a_pair_is_drawn_as_often_as_its_probability_says(distribution, certain):
    """Half of the keys are ruled out, and 1,000 queries are joined to the others at rate 1."""
    model = FactorModel(torch.ones(1000, 1), torch.ones(1, 1), torch.tensor([[0.], [1.]]))
    graph = reference.sample(model, distribution, torch.Generator().manual_seed(0)).validate()
    assert graph.key.all() and abs(graph.num_edges / 1000 - certain) < .06
