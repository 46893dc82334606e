"""Decoding by every cache of transformers gives what the whole sequence gives."""

import copy
import warnings

import pytest
import torch

from graphattn.hugging_face import attach
from graphattn.patterns import Full
from tests.pairwise import pairwise
from tests.test_hugging_face import DECODERS, PADDINGS, PATTERN, SIZES, TOKENS, new_model

transformers = pytest.importorskip('transformers')
from transformers import cache_utils  # noqa: E402


class Exact(cache_utils.QuantizedLayer):
    """A quantised layer of infinitely many bits: stored and restored, and the same."""

    def _quantize(self, tensor, axis):
        return tensor.clone()

    def _dequantize(self, tensor):
        return tensor


def quantised(config):
    layers = [Exact(residual_length=4) for _ in range(config.num_hidden_layers)]
    return cache_utils.Cache(layers=layers)


CACHES = {
    'dynamic': lambda config: transformers.DynamicCache(),
    'of the config': lambda config: transformers.DynamicCache(config=config),
    'static': lambda config: transformers.StaticCache(config=config, max_cache_len=32),
    'quantised': quantised,
}
# At once and token by token, in chunks, and token by token from the beginning.
STEPS = {'prompt': [10, *[1] * 10], 'chunks': [7, 5, *[1] * 8], 'tokens': [1] * 20}


def gemma():
    """Return a model with windowed and with full layers, whose caches keep different parts."""
    config = transformers.Gemma3TextConfig(
        **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=6, pad_token_id=0,
        layer_types=['sliding_attention', 'full_attention'])
    torch.manual_seed(0)
    return transformers.Gemma3ForCausalLM(config).eval()


def decoder(family):
    return gemma() if family == 'Gemma' else new_model(family, DECODERS[family])


@torch.no_grad()
def decoded(model, cache, is_token, steps):
    logits, first = [], 0
    for number in steps:
        last = first + number
        position_ids = (is_token.cumsum(1) - 1).clamp(min=0)[:, first:last]
        logits.append(model(TOKENS[:, first:last], attention_mask=is_token[:, :last].long(),
                            position_ids=position_ids, past_key_values=cache).logits)
        first = last
    return torch.cat(logits, dim=1)[is_token]


@torch.no_grad()
def at_once(model, is_token):
    position_ids = (is_token.cumsum(1) - 1).clamp(min=0)
    return model(TOKENS, attention_mask=is_token.long(), position_ids=position_ids,
                 use_cache=False).logits[is_token]


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:the padding mask leaves no token')
@pytest.mark.parametrize('family, cache, padding, steps', pairwise(
    ['Llama', 'Mistral', 'GPT-2', 'Gemma'], CACHES, ['none', 'left'], STEPS))
def test_logits_behind_a_cache_equal_those_of_the_whole_sequence(family, cache, padding, steps):
    model, is_token = attach(decoder(family), PATTERN), PADDINGS[padding]
    got = decoded(model, CACHES[cache](model.config), is_token, STEPS[steps])
    torch.testing.assert_close(got, at_once(model, is_token), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('family, backend', [('Llama', 'fp8'), ('GPT-2', 'quanto')])
def test_a_lossy_cache_loses_the_same_as_without_a_graph(family, backend):
    if backend == 'quanto':
        pytest.importorskip('optimum.quanto')
    options = {} if backend == 'fp8' else dict(nbits=4, q_group_size=8, residual_length=4)
    before, is_token = decoder(family), PADDINGS['left']
    after = attach(copy.deepcopy(before), Full())
    got, expected = (decoded(model, cache_utils.QuantizedCache(backend, model.config, **options),
                             is_token, STEPS['prompt']) for model in (after, before))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert (got - at_once(before, is_token)).abs().max() > 1e-3


@pytest.mark.parametrize('family', ['Llama', 'GPT-2'])
def test_a_cropped_cache_continues_from_there(family):
    model, is_token = attach(decoder(family), PATTERN), PADDINGS['none']
    cache = transformers.DynamicCache()
    decoded(model, cache, is_token, [20])
    cache.crop(-8)
    with torch.no_grad():
        got = model(TOKENS[:, 12:], past_key_values=cache).logits
    expected = at_once(model, is_token).unflatten(0, TOKENS.shape)[:, 12:]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('pattern, changes', [
    ('SlidingWindow(2) | GlobalTokens(1)', False), ('Strided(3)', False), ('Full()', False),
    ('Cropped(RandomKeys(20), 64)', False), ('RandomKeys(2)', True), ('exphormer', True),
    ("RandomKeys(2, spacing='uniform')", True), ('SlidingWindow(1) | RandomBlocks(1, 2)', True)])
def test_generation_warns_of_edges_that_change_while_a_sequence_grows(pattern, changes):
    model = attach(decoder('Llama'), pattern)
    options = dict(max_new_tokens=12, do_sample=False, pad_token_id=0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter('default')
        got = [model.generate(TOKENS, **options), model.generate(TOKENS, **options)][0]
    expected = [w for w in warned if 'change as a sequence grows' in str(w.message)]
    assert len(expected) == changes and all('Cropped' in str(w.message) for w in expected)
    if not changes:
        assert got.equal(model.generate(TOKENS, use_cache=False, **options))
