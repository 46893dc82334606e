"""A fit has as little error as any choice of patterns within its budget."""

import copy
import itertools
from functools import cache

import numpy as np
import pytest
import torch

from graphattn.hugging_face import attached, fit, fit_to_loss, fitting, head_costs, profile
from graphattn.patterns import parse
from tests.hugging_face.test_profile import new_model
from tests.test_hugging_face import TOKENS

PATTERNS = ['SlidingWindow(0)', 'SlidingWindow(1)', 'SlidingWindow(3) | GlobalTokens(1)',
            'SlidingWindow(6)', 'GlobalTokens(2)', 'Full()']
FAMILIES = ['BERT', 'Llama', 'GPT-2']


@cache
def _measured(family):
    model = new_model(family)
    return model, profile(model, [TOKENS], patterns=PATTERNS)


def measured(family):
    return copy.deepcopy(_measured(family))


def loss(model):
    """The mean square of the distance to fixed targets."""
    with torch.no_grad():
        hidden = model(TOKENS).last_hidden_state
    generator = torch.Generator().manual_seed(0)
    return float((hidden - torch.randn(hidden.shape, generator=generator)).square().mean())


@pytest.mark.parametrize('family', FAMILIES)
def test_shares_of_patterns_are_sums_of_the_weights_on_their_edges(family):
    model, found = measured(family)
    model.set_attn_implementation('eager')
    length, causal = TOKENS.size(1), family != 'BERT'
    layers = model(TOKENS, output_attentions=True).attentions
    for row, (layer, head) in enumerate(zip(found.layer, found.head)):
        weight = layers[layer][:, head].detach().double()
        for number, pattern in enumerate(PATTERNS):
            mask = parse(pattern).build(length).to_mask()
            mask = mask.tril() if causal else mask
            assert found.pattern_share[row, number] == pytest.approx(
                float((weight * mask).sum() / weight.size(0) / length), abs=1e-6)
            assert found.pattern_edges[row, number] == pytest.approx(float(mask.sum() / length))
            if pattern in ('SlidingWindow(0)', 'Full()'):  # which have no or all of the error
                assert (found.pattern_error[row, number] > 1e-3) == (pattern != 'Full()')


def test_errors_are_those_of_the_outputs_of_an_attached_head():
    """BERT's self-attention returns the context, so hooks can compare it."""
    model, found = measured('BERT')
    layer, contexts = model.encoder.layer[0].attention.self, []
    layer.register_forward_hook(lambda module, args, out: contexts.append(out[0].detach()))
    model(TOKENS)
    for number, pattern in enumerate(PATTERNS):
        with attached(model, pattern, layers=[0]):
            model(TOKENS)
        dense, sparse = (x.unflatten(-1, (4, -1)) for x in (contexts[0], contexts[-1]))
        error = (sparse - dense).square().sum((0, 1, 3)) / dense.square().sum((0, 1, 3))
        assert found.pattern_error[:4, number] == pytest.approx(error.numpy(), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize('density', [.15, .3, .6, 1.])
@pytest.mark.parametrize('family', FAMILIES)
def test_no_choice_of_as_few_edges_errs_less(family, density):
    """By all choices of four heads; the greedy steps are within one step of the optimum."""
    _, found = measured(family)
    rows = found.layer == 0
    part = {name: getattr(found, name)[rows]
            for name in ('layer', 'pattern_share', 'pattern_error', 'pattern_edges', 'keys')}
    costs = np.array([1., 3., .5, 2.])
    one = type(found)(**{**vars(found), **part, 'layers': found.layers[:1]})
    chosen = fit(one, density, costs=costs)
    assert chosen.density.mean() <= density + 1e-9
    errors, edges = part['pattern_error'], part['pattern_edges']
    budget = density * part['keys'].sum()
    losses = [sum(costs[head] * errors[head, at] for head, at in enumerate(choice))
              for choice in itertools.product(range(len(PATTERNS)), repeat=4)
              if sum(edges[head, at] for head, at in enumerate(choice)) <= budget + 1e-9]
    steps = [-np.diff(errors[head, fitting._hull(edges[head], errors[head])])
             for head in range(4)]
    largest_step = max(costs[head] * step.max() for head, step in enumerate(steps) if len(step))
    mine = float((costs * chosen.error).sum())
    assert min(losses) - 1e-9 <= mine <= min(losses) + largest_step
    if density == 1:
        assert chosen.share.min() > 1 - 1e-5 and chosen.error.max() < 1e-9


def test_a_fit_among_some_patterns_is_that_of_a_profile_of_these():
    model, found = measured('BERT')
    some = PATTERNS[3:0:-1]
    names = [repr(parse(pattern)) for pattern in some]
    expected, chosen = fit(profile(model, [TOKENS], patterns=some), .3), fit(found.among(names), .3)
    assert chosen.patterns == expected.patterns
    np.testing.assert_array_equal(chosen.error, expected.error)
    with pytest.raises(ValueError, match=r"'patterns' must contain .*got 'Full\(\) '"):
        found.among(['Full() '])


def test_costs_are_what_the_loss_rises_without_a_heads_edges():
    model, found = measured('BERT')
    costs = head_costs(model, found, loss)
    dense = loss(model)
    for row in (0, 5):
        with attached(model, 'SlidingWindow(0)', layers=[int(found.layer[row])],
                      heads=[int(found.head[row])]):
            rise = loss(model) - dense
        assert costs[row] == pytest.approx(max(rise, 0) / found.pattern_error[row, 0])
    assert not hasattr(model, 'graph_attachment')


def test_the_loss_stays_within_the_given_factor():
    model, found = measured('GPT-2')
    with torch.no_grad():
        target = model(TOKENS).last_hidden_state

    def distance(model):
        with torch.no_grad():
            return 1e-3 + float((model(TOKENS).last_hidden_state - target).square().mean())

    densities = []
    for at_most in (1.5, 1e9):
        chosen = fit_to_loss(model, found, distance, at_most)
        with attached(model, chosen):
            assert distance(model) <= at_most * 1e-3
        densities.append(chosen.density.mean())
    assert densities[0] > densities[1]
    with pytest.raises(ValueError, match="'at_most'.*patterns.*got 1.0001"):
        fit_to_loss(model, profile(model, [TOKENS], patterns=PATTERNS[:2]), distance, 1.0001)


@pytest.mark.parametrize('arguments, error, match', [
    (dict(density=0), ValueError, "'density' must be positive"),
    (dict(density=1.1), ValueError, "'density' must be at most 1"),
    (dict(density='x'), TypeError, "'density'"),
    (dict(density=.001), ValueError, "'density' must be at least 0.0"),
    (dict(density=.5, costs=[1.]), ValueError, "'costs' must.*8 numbers"),
    (dict(density=.5, costs=[-1.] * 8), ValueError, "'costs' must.*8 numbers")])
def test_what_is_refused(arguments, error, match):
    _, found = measured('BERT')
    with pytest.raises(error, match=match):
        fit(found, **arguments)


def test_profiles_that_do_not_fit_are_refused():
    model, found = measured('BERT')
    with pytest.raises(ValueError, match="'profile' must.*patterns"):
        fit(profile(model, [TOKENS], patterns=[]), .5)
    with pytest.raises(TypeError, match="'profile' must be"):
        fit(3, .5)
    for measure in (lambda: head_costs(new_model('GPT-2'), found, loss),
                    lambda: fit_to_loss(new_model('GPT-2'), found, loss, 1.1)):
        with pytest.raises(ValueError, match="'profile' must be a profile of this model"):
            measure()
    with pytest.raises(ValueError, match="'at_most' must be above 1"):
        fit_to_loss(model, found, loss, 1.)
    with pytest.raises(ValueError, match="'loss' must return a finite number.*got nan"):
        fit_to_loss(model, found, lambda _: float('nan'), 1.1)
    with pytest.raises(TypeError, match="'patterns' must be"):
        profile(model, [TOKENS], patterns=[3])
