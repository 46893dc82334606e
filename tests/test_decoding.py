"""Tokens that come one after the other give what the whole sequence gives."""

import copy
import math

import pytest
import torch
from torch import Tensor

from graphattn.decoding import KeyValueCache
from graphattn.layers import GraphAttention
from graphattn.models import Encoder
from graphattn.patterns import (
    Causal,
    GlobalTokens,
    LogSparse,
    OverlappingBlocks,
    Pattern,
    RandomKeys,
    SlidingWindow,
    Strided,
    without_diagonal,
)
from graphattn.placement import Cache
from graphattn.sources import PatternSource

LENGTH, CHANNELS, HEADS = 24, 8, 2
PATTERNS = [SlidingWindow(3), SlidingWindow(2) | GlobalTokens(1), RandomKeys(3),
            GlobalTokens(2, random=True), LogSparse(), Strided(4), OverlappingBlocks(8)]
SOURCES = {repr(pattern): PatternSource(pattern & Causal()) for pattern in PATTERNS}
SOURCES['one for each head'] = PatternSource([pattern & Causal() for pattern in PATTERNS[:2]])
STEPS = {'one by one': [[1, 1]] * LENGTH, 'after a prompt': [[10, 3], [1, 1], [13, 0], [0, 20]],
         'some of no tokens': [[0, 0], [10, 3], [0, 0], [14, 21], [0, 0]]}


def decode(module, x: Tensor, steps: list[list[int]]) -> Tensor:
    """Apply a module to two sequences ``[2, LENGTH, ...]``, some tokens of each at a time."""
    cache, outs = KeyValueCache(LENGTH, 2), ([], [])
    for counts in steps:
        tokens = [x[b, seen:seen + count] for b, (seen, count) in enumerate(zip(cache.seen,
                                                                                counts))]
        ptr = torch.tensor([0, counts[0], sum(counts)])
        out = module(torch.cat(tokens), ptr, placement=cache.step(ptr))
        for own, part in zip(outs, out.split(counts)):
            own.append(part)
    return torch.stack([torch.cat(own) for own in outs])


@pytest.mark.parametrize('steps', STEPS)
@pytest.mark.parametrize('name', SOURCES)
@torch.no_grad()
def test_decoded_attention_equals_the_whole_sequence(name, steps):
    attention = GraphAttention(CHANNELS, HEADS, copy.deepcopy(SOURCES[name]))
    x = torch.randn(2, LENGTH, CHANNELS)
    ptr = torch.tensor([0, LENGTH, 2 * LENGTH])
    expected = attention(x.flatten(0, 1), ptr).view_as(x)
    torch.testing.assert_close(decode(attention, x, STEPS[steps]), expected)


HOPS = {'without a teleport': dict(hops=2),
        'a teleport for each': dict(hops=3, teleport=[.1, .5, .9]),
        'keys that heads share': dict(hops=3, teleport=.1, num_kv_heads=1)}


@pytest.mark.parametrize('value', [None, math.inf, math.nan])
@pytest.mark.parametrize('hops', HOPS)
@torch.no_grad()
def test_values_that_are_not_finite_reach_the_same_tokens(hops, value):
    """Values alone: keys and queries do not see the last channel. No token attends to itself."""
    source = PatternSource(without_diagonal(SlidingWindow(2) & Causal()))
    attention = GraphAttention(CHANNELS, HEADS, source, **HOPS[hops])
    for linear in (attention.lin_query, attention.lin_key):
        linear.weight[:, -1] = 0.
    x, ptr = torch.randn(2, LENGTH, CHANNELS), torch.tensor([0, LENGTH, 2 * LENGTH])
    if value is not None:
        attention.lin_value.register_forward_hook(
            lambda _, given, out: torch.where(given[0][:, -1:] > 100, value, out))
        x[0, 5, -1] = 1e3
    attention.lin_out = torch.nn.Identity()
    expected = attention(x.flatten(0, 1), ptr).view_as(x)
    assert (value is not None) <= (~expected.isfinite()).sum() < x.numel() / 2
    torch.testing.assert_close(decode(attention, x, STEPS['one by one']), expected, equal_nan=True)


@torch.no_grad()
def test_a_layer_that_runs_twice_in_a_pass_caches_both_runs():
    encoder = Encoder(SlidingWindow(3) & Causal(), num_tokens=11, max_length=LENGTH,
                      channels=CHANNELS, heads=HEADS, num_layers=2).eval()
    encoder.layers[1] = encoder.layers[0]
    tokens = torch.randint(11, (2, LENGTH))
    expected = encoder(tokens.flatten(), torch.tensor([0, LENGTH, 2 * LENGTH]))
    for steps in STEPS.values():
        out = decode(encoder, tokens, steps)
        torch.testing.assert_close(out.flatten(0, 1), expected)


@pytest.mark.parametrize('modes', [(torch.inference_mode, torch.no_grad),
                                   (torch.no_grad, torch.inference_mode)])
def test_a_cache_can_be_used_in_another_mode(modes):
    attention, x = GraphAttention(CHANNELS, HEADS, SlidingWindow(3) & Causal()), torch.randn(6, 8)
    cache, expected = KeyValueCache(6), attention(x, torch.tensor([0, 6]))
    for mode, part in zip(modes, (slice(0, 3), slice(3, 6))):
        with mode():
            out = attention(x[part], THREE, placement=cache.step(THREE))
            torch.testing.assert_close(out, expected[part])


# What fails ##########################################################################


def fail(*args):
    raise RuntimeError('out of memory')


@pytest.fixture
def half_decoded():
    """An encoder of two layers, six tokens, a cache that has seen three, and the whole output."""
    encoder = Encoder(SlidingWindow(3) & Causal(), num_tokens=11, max_length=LENGTH,
                      channels=CHANNELS, heads=HEADS, num_layers=2).eval()
    tokens, cache = torch.randint(11, (6,)), KeyValueCache(LENGTH)
    with torch.no_grad():
        encoder(tokens[:3], THREE, placement=cache.step(THREE))
        return encoder, tokens, cache, encoder(tokens, torch.tensor([0, 6]))


THREE = torch.tensor([0, 3])


@torch.no_grad()
def test_a_refused_call_can_be_repeated(half_decoded):
    encoder, tokens, cache, expected = half_decoded
    with pytest.raises(ValueError, match="'tokens' must.*ids.*0.*10.*got 3 to 11"):
        encoder(torch.tensor([3, 11, 3]), THREE, placement=cache.step(THREE))
    handle = encoder.layers[0].attention.attention.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match='out of memory'):
        encoder(torch.tensor([3, 3, 3]), THREE, placement=cache.step(THREE))
    handle.remove()
    assert cache.seen == [3]
    out = encoder(tokens[3:], THREE, placement=cache.step(THREE))
    torch.testing.assert_close(out, expected[3:])


@torch.no_grad()
def test_decoding_cannot_continue_after_a_failure_between_layers(half_decoded):
    encoder, tokens, cache, _ = half_decoded
    handle = encoder.layers[0].feed_forward.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match='out of memory'):
        encoder(tokens[3:], THREE, placement=cache.step(THREE))
    handle.remove()
    with pytest.raises(ValueError, match=r'cache of the layer, \[3\] .*\(got a step after \[6\]'):
        encoder(tokens[3:], THREE, placement=cache.step(THREE))


@torch.no_grad()
def test_a_step_is_for_one_pass(half_decoded):
    encoder, tokens, cache, _ = half_decoded
    step, another = cache.step(THREE), cache.step(THREE)
    encoder(tokens[3:], THREE, placement=step)
    for used in (step, another):
        with pytest.raises(ValueError, match='use each step for one pass'):
            encoder(tokens[3:], THREE, placement=used)


@pytest.mark.slow
@torch.no_grad()
def test_only_keys_with_edges_are_read(monkeypatch):
    attention = GraphAttention(CHANNELS, HEADS, PatternSource(SlidingWindow(2) & Causal()))
    read, seen = Cache.keys, []

    def keys(cache: Cache, new: Tensor) -> Tensor:
        found = read(cache, new)
        seen.append(found.size(0))
        return found

    monkeypatch.setattr(Cache, 'keys', keys)
    cache = KeyValueCache(1000)
    for token in torch.randn(50, 1, CHANNELS):
        attention(token, torch.tensor([0, 1]), placement=cache.step(torch.tensor([0, 1])))
    assert max(seen) == 3


def test_layers_that_cannot_be_decoded_are_refused():
    x, cache = torch.randn(1, CHANNELS), KeyValueCache(2)
    one = torch.tensor([0, 1])

    def attention(pattern: Pattern, **options) -> GraphAttention:
        return GraphAttention(CHANNELS, HEADS, PatternSource(pattern), **options)

    with pytest.raises(ValueError, match='does not support gradients'):
        attention(SlidingWindow(1) & Causal())(x, one, placement=cache.step(one))
    with pytest.raises(ValueError, match='longer than the 2 tokens of the cache .got 3'):
        cache.step(torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="'ptr' must mark the 1 sequences"):
        cache.step(torch.tensor([0, 1, 2]))
    with pytest.raises(TypeError, match="'ptr' must be an int64 Tensor .got list"):
        cache.step([0, 1])
    dropping = attention(SlidingWindow(1) & Causal(), hops=2, dropout=.1)
    with torch.no_grad(), pytest.raises(ValueError, match="'dropout' must be off"):
        dropping(x, one, placement=KeyValueCache(2).step(one))


@torch.no_grad()
def test_a_cache_of_another_model_is_refused():
    pattern, one = SlidingWindow(1) & Causal(), torch.tensor([0, 1])
    attention, other = (GraphAttention(CHANNELS, heads, pattern) for heads in (HEADS, 4))
    x, cache = torch.randn(1, CHANNELS), KeyValueCache(5)
    attention(x, one, placement=cache.step(one))
    with pytest.raises(ValueError, match='create one KeyValueCache for each model'):
        other(x, one, placement=cache.step(one))
    own = KeyValueCache(5)
    attention(x, one, placement=own.step(one))
    with pytest.raises(ValueError, match=r"'ptr' must belong to a cache .*\(2, 4\)"):
        attention(x, one, placement=own.step(one), source=PatternSource([pattern] * HEADS))
    with pytest.raises(TypeError, match="'ptr' .* torch.float64 .got torch.float32"):
        attention.double()(x.double(), one, placement=own.step(one))
