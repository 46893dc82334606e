import copy
import math
import pickle
import threading

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
    for segment in range(model.num_segments):
        block_matrix = mixing[segment // (model.num_segments // model.num_heads)]
        for i in range(model.query_ptr[segment], model.query_ptr[segment + 1]):
            for j in range(model.key_ptr[segment], model.key_ptr[segment + 1]):
                p_ij = model.query_factor[i] @ block_matrix @ model.key_factor[j]
                prob[i, j] = p_ij + model.exploration
    return prob


ONES, SQUARE = torch.ones(4, 2), torch.ones(2, 2)
PTR = {'query_ptr': torch.tensor([0, 2, 2, 6, 7]), 'key_ptr': torch.tensor([0, 1, 3, 5, 5])}
HEAD_PTR = {'query_ptr': torch.tensor([0, 3, 7, 9, 14]), 'key_ptr': torch.tensor([0, 0, 5, 9, 10])}
MODELS = {
    'one segment': random_model(),
    'square': random_model(4, 4),
    'segments': random_model(**PTR),
    'exploration': random_model(**PTR, exploration=0.1),
    'a segment for each head': random_model(num_heads=3),
    'segments and heads': random_model(num_heads=2, **HEAD_PTR, exploration=0.01),
    'no node': random_model(0, 0),
    'no segment': random_model(0, 0, num_heads=2, query_ptr=torch.tensor([0])),
}
every_model = pytest.mark.parametrize('model', MODELS.values(), ids=MODELS)


@every_model
def test_expectation(model):
    torch.testing.assert_close(model.expectation(), brute_force(model))


@every_model
def test_expected_edges(model):
    prob = brute_force(model)
    per_segment = [prob[i:i_end, j:j_end].sum() for i, i_end, j, j_end in zip(
        model.query_ptr[:-1], model.query_ptr[1:], model.key_ptr[:-1], model.key_ptr[1:])]
    expected = torch.tensor(per_segment, dtype=torch.float64)
    torch.testing.assert_close(model.expected_edges(), expected)


@every_model
def test_mixed_query_times_key_is_the_probability(model):
    mixed = model.mixed_query()
    assert mixed.shape == model.query_factor.shape
    same_segment = brute_force(model) > 0
    prob = (mixed @ model.key_factor.t() + model.exploration) * same_segment
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


@pytest.mark.slow
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


def test_models_used_in_inference_mode_still_train():
    model = random_model(7, 5)
    with torch.inference_mode():
        of_inference = random_model(7, 5)
        seen = [model.mixed_query(), of_inference.mixed_query()]
    for other, mixed in zip((model, of_inference), seen):
        weight = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
        (other.mixed_query() @ weight).sum().backward()
        torch.testing.assert_close(weight.grad[:, 0], mixed.sum(0))


def test_concurrent_threads_see_one_product():
    for _ in range(20):
        model, results = random_model(60, 50, 8), []
        together = threading.Barrier(4)

        def ask(model=model, results=results, together=together):
            together.wait()
            results.append(model.mixed_query())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for mixed in results:
            torch.testing.assert_close(mixed, model.query_factor @ model.mixing)


@pytest.mark.parametrize('used', [False, True], ids=['before use', 'after use'])
@pytest.mark.parametrize('duplicate', [copy.copy, copy.deepcopy,
                                       lambda model: pickle.loads(pickle.dumps(model))],
                         ids=['copy', 'deepcopy', 'pickle'])
def test_copies_are_models_without_gradients(duplicate, used):
    given = random_model(num_heads=2, **HEAD_PTR, exploration=0.01)
    factors = [factor.requires_grad_() * 1 for factor in (given.query_factor, given.mixing,
                                                          given.key_factor)]
    model = FactorModel(*factors, **HEAD_PTR, exploration=0.01)
    if used:
        model.mixed_query()
    other = duplicate(model)
    assert repr(other) == repr(model) and other.segments == model.segments
    assert torch.equal(other.expectation(), model.expectation())
    assert model.mixed_query().requires_grad and not other.mixed_query().requires_grad


def test_unpickled_models_are_validated():
    model = random_model()
    state = model.__getstate__() | {'mixing': -model.mixing}
    with pytest.raises(ValueError, match="'mixing' must be finite and not negative"):
        FactorModel.__new__(FactorModel).__setstate__(state)


@pytest.mark.parametrize('used', [False, True], ids=['before use', 'after use'])
@pytest.mark.parametrize('method', ['mixed_query', 'expectation'])
def test_torch_func_derives_as_autograd_does(method, used):
    given = random_model(6, 5)
    factors = given.query_factor, given.mixing, given.key_factor

    def loss(*factors):
        model = FactorModel(*factors)
        if used:
            model.mixed_query()
        return getattr(model, method)().square().sum()

    expected = torch.autograd.functional.jacobian(loss, factors)
    for grad, other in zip(torch.func.grad(loss, argnums=(0, 1, 2))(*factors), expected):
        torch.testing.assert_close(grad, other)
    tangents = tuple(torch.rand_like(factor) for factor in factors)
    value, slope = torch.func.jvp(loss, factors, tangents)
    step = 1e-6
    ahead, behind = (loss(*(factor + sign * step * tangent
                            for factor, tangent in zip(factors, tangents))) for sign in (1, -1))
    assert value == loss(*factors)
    torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_model_is_made_and_mixed_inside_one_compiled_graph():
    def mix(query_factor, mixing, key_factor):
        model = FactorModel(query_factor, mixing, key_factor, **HEAD_PTR, exploration=0.01)
        return model.mixed_query().sum() + model.expectation().sum()

    given = random_model(num_heads=2, **HEAD_PTR)
    factors = [factor.requires_grad_() for factor in (given.query_factor, given.mixing,
                                                      given.key_factor)]
    torch._dynamo.reset()
    values = [mix(*factors), torch.compile(mix, backend='eager')(*factors)]
    torch.testing.assert_close(*values)
    for grads in zip(*(torch.autograd.grad(value, factors) for value in values)):
        torch.testing.assert_close(*grads)


@pytest.mark.slow
@pytest.mark.parametrize('method', ['mixed_query', 'expectation', 'expected_edges'])
def test_gradients(method):
    model = MODELS['segments and heads']
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


@pytest.mark.parametrize('dtypes, expected', [
    ((torch.float16, torch.float32, torch.float16), torch.float32),  # softmax under autocast
    ((torch.bfloat16, torch.float32, torch.bfloat16), torch.float32),
    ((torch.float16, torch.bfloat16, torch.float16), torch.float32),
    ((torch.float32, torch.float16, torch.float64), torch.float64),
])
def test_factors_may_differ_in_dtype(dtypes, expected):
    given = random_model(6, 5)
    factors = [factor.to(dtype).requires_grad_() for factor, dtype in zip(
        (given.query_factor, given.mixing, given.key_factor), dtypes)]
    model = FactorModel(*factors)
    wide = FactorModel(*(factor.detach().to(expected) for factor in factors))
    assert model.dtype == model.mixed_query().dtype == model.expectation().dtype == expected
    assert torch.equal(model.expectation(), wide.expectation())
    assert torch.equal(model.expected_edges(), wide.expected_edges())
    grads = torch.autograd.grad(model.expectation().sum(), factors)
    assert tuple(grad.dtype for grad in grads) == dtypes


BAD_INPUT = {
    'mixing of one dimension': (ONES, torch.ones(2), ONES, {}, r"'mixing' must.*shape \(2,\)"),
    'mixing of other clusters': (ONES, torch.ones(2, 3), ONES, {}, r"'mixing' must.*\(2, 3\)"),
    'keys of other clusters': (ONES, SQUARE, torch.ones(4, 3), {}, r"'key_factor' must.*, 3\)"),
    'no cluster': (torch.ones(4, 0), torch.ones(0, 0), torch.ones(4, 0), {},
                   r"'query_factor' must.*least.*, 0\)"),
    'negative': (ONES, -SQUARE, ONES, {}, r"'mixing' must .* \(got values from -1.0 to -1.0\)"),
    'nan': (ONES, SQUARE, ONES * math.nan, {}, "'key_factor' must .*got values from nan"),
    'infinite': (ONES * math.inf, SQUARE, ONES, {}, "'query_factor' must .*got values from inf"),
    'numbers of segments': (ONES, SQUARE, ONES, {'query_ptr': torch.tensor([0, 2, 4]),
                                                 'key_ptr': torch.tensor([0, 4])},
                            r"must.*same number.*segments \(got 2.*1\)"),
    'no head': (ONES, torch.ones(0, 2, 2), ONES, {}, "'mixing' must have at least one head"),
    'nodes of heads': (ONES, torch.ones(3, 2, 2), ONES, {}, "'query_factor' must .*heads .*got 4"),
    'segments of heads': (ONES, torch.ones(2, 2, 2), ONES,
                          {'query_ptr': torch.tensor([0, 1, 2, 4])},
                          r"'query_ptr' must.*segments.*2 heads.*'mixing' \(got 3"),
    'uneven heads': (ONES, torch.ones(2, 2, 2), ONES,
                     {'query_ptr': torch.tensor([0, 1, 2, 3, 4]),
                      'key_ptr': torch.tensor([0, 1, 3, 3, 4])},
                     r"'key_ptr' must mark 4 /.*heads that begin.*\[0, 3, 4\]\)"),
}


@pytest.mark.parametrize('query_factor, mixing, key_factor, kwargs, match', BAD_INPUT.values(),
                         ids=BAD_INPUT)
def test_bad_input(query_factor, mixing, key_factor, kwargs, match):
    with pytest.raises(ValueError, match=match):
        FactorModel(query_factor, mixing, key_factor, **kwargs)
