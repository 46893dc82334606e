import math

import pytest
import torch

from graphattn.samplers import FactorModel


def random_model(num_queries=7, num_keys=5, k=3, num_heads=1, **kwargs):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.rand(num_heads, k, k, generator=generator, dtype=torch.float64)
    return FactorModel(
        torch.rand(num_heads * num_queries, k, generator=generator, dtype=torch.float64),
        mixing if num_heads > 1 else mixing[0],
        torch.rand(num_heads * num_keys, k, generator=generator, dtype=torch.float64), **kwargs)


def brute_force(model):
    """p_ij + exploration, pair by pair."""
    prob = torch.zeros(model.num_queries, model.num_keys, dtype=torch.float64)
    mixing = model.mixing.view(-1, model.num_clusters, model.num_clusters)
    for block in range(model.num_blocks):
        block_matrix = mixing[block // (model.num_blocks // model.num_heads)]
        for i in range(model.query_ptr[block], model.query_ptr[block + 1]):
            for j in range(model.key_ptr[block], model.key_ptr[block + 1]):
                p_ij = model.query_factor[i] @ block_matrix @ model.key_factor[j]
                prob[i, j] = p_ij + model.exploration
    return prob


PTR = {'query_ptr': torch.tensor([0, 2, 2, 6, 7]), 'key_ptr': torch.tensor([0, 1, 3, 5, 5])}
HEAD_PTR = {'query_ptr': torch.tensor([0, 3, 7, 9, 14]), 'key_ptr': torch.tensor([0, 0, 5, 9, 10])}
MODELS = {
    'one block': random_model(),
    'square': random_model(4, 4),
    'blocks': random_model(**PTR),
    'exploration': random_model(**PTR, exploration=0.1),
    'a block for each head': random_model(num_heads=3),
    'blocks and heads': random_model(num_heads=2, **HEAD_PTR, exploration=0.01),
    'no node': random_model(0, 0),
    'no block': random_model(0, 0, num_heads=2, query_ptr=torch.tensor([0])),
}
every_model = pytest.mark.parametrize('model', MODELS.values(), ids=MODELS)


@every_model
def test_expectation(model):
    torch.testing.assert_close(model.expectation(), brute_force(model))


@every_model
def test_expected_edges(model):
    prob = brute_force(model)
    per_block = [prob[i:i_end, j:j_end].sum() for i, i_end, j, j_end in zip(
        model.query_ptr[:-1], model.query_ptr[1:], model.key_ptr[:-1], model.key_ptr[1:])]
    expected = torch.tensor(per_block, dtype=torch.float64)
    torch.testing.assert_close(model.expected_edges(), expected)


@every_model
def test_mixed_query_times_key_is_the_probability(model):
    mixed = model.mixed_query()
    assert mixed.shape == model.query_factor.shape
    same_block = brute_force(model) > 0
    prob = (mixed @ model.key_factor.t() + model.exploration) * same_block
    torch.testing.assert_close(prob, brute_force(model))


@pytest.mark.parametrize('part', ['query_factor', 'mixing', 'mixed'])
@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
def test_the_kept_product_follows_changes_in_place(part, mode):
    with mode():
        model = random_model(7, 5)
        tensor = model.mixed_query() if part == 'mixed' else getattr(model, part)
        model.mixed_query()
        tensor.mul_(2)
        torch.testing.assert_close(model.mixed_query(), model.query_factor @ model.mixing)


def test_the_kept_product_serves_any_mode_and_any_number_of_backward_passes():
    model = random_model(7, 5)
    with torch.inference_mode():
        model.mixed_query()
    factors = [factor.requires_grad_() for factor in (model.query_factor, model.mixing)]
    expected = torch.autograd.grad((factors[0] @ factors[1]).square().sum(), factors)
    for _ in range(2):
        grads = torch.autograd.grad(model.mixed_query().square().sum(), factors)
        for grad, other in zip(grads, expected):
            torch.testing.assert_close(grad, other)
    assert torch.autograd.gradgradcheck(
        lambda *factors: FactorModel(*factors, model.key_factor).mixed_query(), factors)


@pytest.mark.parametrize('method', ['mixed_query', 'expectation', 'expected_edges'])
def test_gradients(method):
    model = MODELS['blocks and heads']
    factors = [factor.clone().requires_grad_()
               for factor in (model.query_factor, model.mixing, model.key_factor)]
    assert torch.autograd.gradcheck(
        lambda *factors: getattr(FactorModel(*factors, **HEAD_PTR), method)(), factors)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_mixed_in_float32(dtype):
    model = random_model(5, 4, 4)
    factors = [f.to(dtype) for f in (model.query_factor, model.mixing, model.key_factor)]
    exact = FactorModel(*[factor.double() for factor in factors])
    with torch.autocast('cpu', dtype=torch.bfloat16):
        mixed, prob = FactorModel(*factors).mixed_query(), FactorModel(*factors).expectation()
    assert mixed.dtype == prob.dtype == torch.float32
    torch.testing.assert_close(mixed.double(), exact.mixed_query(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(prob.double(), exact.expectation(), rtol=1e-6, atol=1e-7)


def test_default_blocks():
    assert MODELS['one block'].query_ptr.tolist() == [0, 7]
    assert MODELS['one block'].key_ptr.tolist() == [0, 5]
    assert MODELS['a block for each head'].query_ptr.tolist() == [0, 7, 14, 21]
    assert MODELS['a block for each head'].key_ptr.tolist() == [0, 5, 10, 15]
    square = random_model(7, 7, query_ptr=PTR['query_ptr'])
    assert torch.equal(square.key_ptr, square.query_ptr)


@pytest.mark.parametrize('name, text', [
    ('one block', 'FactorModel(num_queries=7, num_keys=5, num_clusters=3)'),
    ('blocks and heads', 'FactorModel(num_queries=14, num_keys=10, num_clusters=3, num_heads=2, '
                         'num_blocks=4, exploration=0.01)'),
])
def test_repr(name, text):
    assert repr(MODELS[name]) == text


ONES, SQUARE = torch.ones(4, 2), torch.ones(2, 2)
BAD_INPUT = {
    'no tensor': ([[1.]], SQUARE, ONES, {}, TypeError,
                  r"'query_factor' must be a floating point Tensor \(got list\)"),
    'integers': (ONES, SQUARE.int(), ONES, {}, TypeError,
                 r"'mixing' must be a floating point Tensor \(got torch.int32\)"),
    'dtypes': (ONES, SQUARE, ONES.double(), {}, TypeError,
               r"'key_factor' must be of the dtype of 'query_factor', torch.float32 \(got "
               r"torch.float64\)"),
    'devices': (ONES, SQUARE.to('meta'), ONES, {}, ValueError,
                r"'mixing' must be on cpu, where 'query_factor' is \(got meta\)"),
    'ptr device': (ONES, SQUARE, ONES, {'key_ptr': torch.tensor([0, 4], device='meta')},
                   ValueError, r"'key_ptr' must be on cpu, where 'query_factor' is \(got meta\)"),
    'unfolded heads': (torch.ones(3, 4, 2), SQUARE, ONES, {}, ValueError,
                       r"'query_factor' must be \[num_nodes, k\] \(got shape \(3, 4, 2\)\)"),
    'mixing of one dimension': (ONES, torch.ones(2), ONES, {}, ValueError,
                                r"'mixing' must be \[k, k\] .* with k = 2 .*shape \(2,\)"),
    'mixing of other clusters': (ONES, torch.ones(2, 3), ONES, {}, ValueError,
                                 r"'mixing' must be .*\(got shape \(2, 3\)\)"),
    'keys of other clusters': (ONES, SQUARE, torch.ones(4, 3), {}, ValueError,
                               r"same clusters, at least one \(got 3 and 2\)"),
    'no cluster': (torch.ones(4, 0), torch.ones(0, 0), torch.ones(4, 0), {}, ValueError,
                   r"same clusters, at least one \(got 0 and 0\)"),
    'negative': (ONES, -SQUARE, ONES, {}, ValueError,
                 r"'mixing' must be finite and not negative \(got values from -1.0 to -1.0\)"),
    'nan': (ONES, SQUARE, ONES * math.nan, {}, ValueError,
            r"'key_factor' must be finite and not negative \(got values from nan to nan\)"),
    'infinite': (ONES * math.inf, SQUARE, ONES, {}, ValueError,
                 r"'query_factor' must be finite and not negative \(got values from inf to inf\)"),
    'exploration type': (ONES, SQUARE, ONES, {'exploration': '0.1'}, TypeError,
                         r"'exploration' must be a float \(got str\)"),
    'exploration sign': (ONES, SQUARE, ONES, {'exploration': -0.1}, ValueError,
                         r"'exploration' must be finite and not negative \(got -0.1\)"),
    'exploration nan': (ONES, SQUARE, ONES, {'exploration': math.nan}, ValueError,
                        r"'exploration' must be finite and not negative \(got nan\)"),
    'ptr dtype': (ONES, SQUARE, ONES, {'query_ptr': torch.tensor([0., 4.])}, TypeError,
                  r"'query_ptr' must be an int64 Tensor \(got torch.float32\)"),
    'ptr end': (ONES, SQUARE, ONES, {'query_ptr': torch.tensor([0, 3])}, ValueError,
                r"'query_ptr' must rise from 0 to 4"),
    'numbers of blocks': (ONES, SQUARE, ONES, {'query_ptr': torch.tensor([0, 2, 4]),
                                               'key_ptr': torch.tensor([0, 4])}, ValueError,
                          r"must mark as many blocks \(got 2 and 1\)"),
    'no head': (ONES, torch.ones(0, 2, 2), ONES, {}, ValueError,
                r"'mixing' must have at least one head"),
    'nodes of heads': (ONES, torch.ones(3, 2, 2), ONES, {}, ValueError,
                       r"'query_factor' must hold as many nodes for each of the 3 heads .*got 4"),
    'blocks of heads': (ONES, torch.ones(2, 2, 2), ONES, {'query_ptr': torch.tensor([0, 1, 2, 4])},
                        ValueError, r"'query_ptr' must mark as many blocks for each of the 2 "
                                    r"heads of 'mixing' \(got 3 in all\)"),
    'uneven heads': (ONES, torch.ones(2, 2, 2), ONES,
                     {'query_ptr': torch.tensor([0, 1, 2, 3, 4]),
                      'key_ptr': torch.tensor([0, 1, 3, 3, 4])}, ValueError,
                     r"'key_ptr' must give each head of 'mixing' 4 / 2 nodes, head after head "
                     r"\(got heads that begin at \[0, 3, 4\]\)"),
}


@pytest.mark.parametrize('query_factor, mixing, key_factor, kwargs, error, match',
                         BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input(query_factor, mixing, key_factor, kwargs, error, match):
    with pytest.raises(error, match=match):
        FactorModel(query_factor, mixing, key_factor, **kwargs)
