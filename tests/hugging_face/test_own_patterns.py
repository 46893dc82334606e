"""Edges that each head has for itself are where its weight is, and are measured on other inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphattn.hugging_face import (
    Profile,
    attach,
    attached,
    attachment,
    fit,
    load_attached,
    own_patterns,
    profile,
    save_attached,
)
from graphattn.hugging_face.profiling import CANDIDATES
from graphattn.patterns import EdgeList, parse
from tests.hugging_face.test_profile import new_model, weights_of
from tests.test_hugging_face import LENGTH, PADDINGS, TOKENS, inputs

FAMILIES = ['BERT', 'Llama', 'GPT-2']
OWN = ['1 own keys', '3 own keys', '4 own offsets', '3 own keys | GlobalTokens(2)',
       '2 own offsets | SlidingWindow(1)', 'Full()']


def weights_by_head(family):
    """Weights of all inputs, ``[heads of all layers, inputs, length, length]``."""
    model = new_model(family)
    options = {} if family == 'BERT' else {'use_cache': False}
    weights = weights_of(model, {'input_ids': TOKENS, **options}, PADDINGS['none'])
    return np.stack([np.concatenate(layers) for layers in weights], axis=1)


def keys_by_hand(weight, count):
    """Return a mask ``[length, length]``: each query attends to itself and to the keys of its
    largest summed weights."""
    others = weight * (1 - np.eye(len(weight)))
    mask = np.eye(len(weight), dtype=bool)
    for row, order in enumerate(np.argsort(-others, axis=1)[:, :count - 1]):
        mask[row, order[others[row, order] > 0]] = True
    return mask


def offsets_by_hand(weight, count):
    query, key = np.indices(weight.shape)
    sums = {offset: weight[key - query == offset].sum()
            for offset in range(1 - len(weight), len(weight)) if offset}
    chosen = [0, *sorted(sums, key=sums.get, reverse=True)[:count - 1]]
    return np.isin(key - query, chosen)


def mask_by_hand(name, weight):
    own, _, beside = name.partition(' | ')
    if 'own' not in own:
        own, beside = '1 own keys', name
    by_hand = keys_by_hand if 'keys' in own else offsets_by_hand
    mask = by_hand(weight, int(own.split()[0]))
    return mask | parse(beside).build(len(weight)).to_mask().numpy() if beside else mask


@pytest.mark.parametrize('family', FAMILIES)
def test_edges_of_each_head_hold_the_largest_weights_of_all_inputs(family):
    found = profile(new_model(family), [TOKENS], patterns=OWN)
    for row, weights in enumerate(weights_by_head(family)):
        for number, name in enumerate(OWN):
            expected = mask_by_hand(name, weights.sum(0))
            assert np.array_equal(found.pattern(row, number).build(LENGTH).to_mask(), expected)


@pytest.mark.parametrize('family', FAMILIES)
def test_each_half_of_the_inputs_measures_the_edges_of_the_other(family):
    found = profile(new_model(family), TOKENS.split(1), patterns=OWN)
    for row, weights in enumerate(weights_by_head(family)):
        for number, name in enumerate(OWN):
            masks = [mask_by_hand(name, weight) for weight in weights[::-1]]
            share = np.mean([(weight * mask).sum() / LENGTH
                             for weight, mask in zip(weights, masks)])
            edges = np.mean([((weight > 0) & mask).sum() / LENGTH
                             for weight, mask in zip(weights, masks)])
            assert found.pattern_share[row, number] == pytest.approx(share, abs=1e-6)
            assert found.pattern_edges[row, number] == pytest.approx(edges)


def test_errors_are_those_of_the_outputs_of_an_attached_head():
    """There is one input, because edges are measured on other inputs if there are several."""
    model = new_model('BERT')
    found, contexts = profile(model, [TOKENS[:1]], patterns=OWN), []
    layer = model.encoder.layer[0].attention.self
    layer.register_forward_hook(lambda module, args, out: contexts.append(
        out[0].detach().unflatten(-1, (4, -1))))
    model(TOKENS[:1])
    for row in range(4):
        for number in range(len(OWN)):
            with attached(model, found.pattern(row, number), layers=[0], heads=[row]):
                model(TOKENS[:1])
            error = (contexts[-1] - contexts[0])[:, :, row].square().sum() / (
                contexts[0][:, :, row].square().sum())
            assert found.pattern_error[row, number] == pytest.approx(float(error), rel=1e-4,
                                                                     abs=1e-9)


def test_sequences_of_other_lengths_share_positions():
    """The first is longer, and the second has keys of its own positions only."""
    model, is_token = new_model('BERT'), PADDINGS['left']
    found = profile(model, [inputs('BERT', is_token, is_dense=False)], patterns=['3 own keys'])
    length = int(is_token[1].sum())
    weights = weights_of(model, {'input_ids': TOKENS, 'attention_mask': is_token.long()}, is_token)
    for row, (whole, short) in enumerate(zip(*map(np.concatenate, weights))):
        total = whole.copy()
        total[:length, :length] += short
        assert np.array_equal(found.pattern(row, 0).build(LENGTH).to_mask(),
                              keys_by_hand(total, 3))
    assert found.own_keys.shape == (8, LENGTH, 3) and found.lengths.tolist() == [LENGTH, length]


# To a model and to files #############################################################


@pytest.mark.parametrize('family', FAMILIES)
def test_a_fit_chooses_them_and_a_saved_model_has_them(family, tmp_path):
    model = new_model(family)
    found = profile(model, [TOKENS], patterns=['1 own keys', *OWN, '6 own keys'])
    found.save(tmp_path / 'profile.npz')
    chosen = fit(Profile.load(tmp_path / 'profile.npz'), .3)
    assert chosen.patterns == fit(found, .3).patterns
    assert any('EdgeList' in pattern for pattern in chosen.patterns)
    attach(model, chosen.along())
    save_attached(model, tmp_path / 'model')
    loaded = load_attached(tmp_path / 'model')
    options = {} if family == 'BERT' else {'use_cache': False}
    with torch.no_grad():
        expected = model(TOKENS, **options).last_hidden_state
        torch.testing.assert_close(loaded(TOKENS, **options).last_hidden_state, expected)
        with pytest.raises(ValueError, match=f'at most {LENGTH} tokens, .*max_length'):
            loaded(torch.cat([TOKENS, TOKENS], dim=1), **options)
    table = attachment(loaded, length=LENGTH)
    assert {row['along'] for row in table.as_table()} == {
        row['pattern'] for row in chosen.as_table()}
    assert f'EdgeList({LENGTH} tokens, ' in str(table) and max(map(len, str(table).split())) < 60


def test_a_sequence_is_generated_along_them_as_without_a_cache():
    torch.manual_seed(0)
    model = new_model('GPT-2', 'GPT2LMHeadModel')
    chosen = fit(profile(model, [TOKENS], patterns=['2 own keys', '3 own offsets']), .5)
    attach(model, chosen.along())
    options = dict(do_sample=False, max_new_tokens=6, eos_token_id=None, pad_token_id=0)
    prompt = TOKENS[:, :10]
    assert torch.equal(model.generate(prompt, **options),
                       model.generate(prompt, use_cache=False, **options))


def test_listed_edges_are_candidates_like_other_patterns():
    edges = EdgeList(LENGTH, torch.stack([torch.zeros(LENGTH, dtype=torch.long),
                                          torch.arange(LENGTH)]))
    found = profile(new_model('BERT'), [TOKENS], patterns=[edges, '1 own keys'])
    assert found.pattern(2, 0) == edges
    np.testing.assert_allclose(found.pattern_share[:, 0], found.kinds[:, 0], atol=1e-6)


@pytest.mark.slow
def test_every_set_of_candidates_is_measured():
    found = profile(new_model('Llama'), [TOKENS],
                    patterns=[name for names in CANDIDATES.values() for name in names])
    assert np.isfinite(found.pattern_error).all() and (found.pattern_edges >= 1).all()
    for number, name in enumerate(found.patterns):
        if 'clusters' in name:
            assert repr(found.pattern(0, number)) == name
            continue
        assert found.pattern(0, number).build(LENGTH, crop=True, seed=0).num_edges >= LENGTH, name


@pytest.mark.parametrize('given, error, match', [
    ('0 own keys', ValueError, r"'patterns' must have from 1 to 4096 own keys \(got '0 own keys'"),
    ('5000 own offsets', ValueError, "'patterns' must have from 1 to 4096 own offsets"),
    ('2 own values', ValueError, "'expression' must be an expression"),
    ('2 own keys | Nothing()', ValueError, 'unknown pattern'),
    (3, TypeError, "'patterns' must be")])
def test_what_is_no_candidate_is_refused(given, error, match):
    with pytest.raises(error, match=match):
        profile(new_model('BERT'), [TOKENS], patterns=[given])


def test_sequences_that_are_too_long_are_refused(monkeypatch):
    monkeypatch.setattr(own_patterns, 'MAX_TOKENS', LENGTH - 1)
    with pytest.raises(ValueError, match=f"'batches' must .* at most {LENGTH - 1} "):
        profile(new_model('BERT'), [TOKENS], patterns=['2 own keys'])
