"""Rotary positions against rotations of the complex plane."""

import pytest
import torch

from graphattn.layers import GraphAttention, RotaryPositions
from graphattn.patterns import Full
from graphattn.sources import PatternSource

CHANNELS, HEADS, SIZE, TOKENS = 12, 2, 6, 5
PTR = torch.tensor([0, TOKENS])


def layer():
    torch.manual_seed(0)
    return GraphAttention(CHANNELS, HEADS, PatternSource(Full())).double()


def rotation(positions):
    return RotaryPositions(50, SIZE).double()(positions)


def test_attention_equals_that_of_rotated_complex_numbers():
    attention, x = layer(), torch.randn(TOKENS, CHANNELS, dtype=torch.float64)
    positions = torch.tensor([4, 0, 7, 7, 30])
    query, key, value = (linear(x).unflatten(1, (HEADS, SIZE)).transpose(0, 1) for linear in (
        attention.lin_query, attention.lin_key, attention.lin_value))
    rate = 10_000. ** (-torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)
    turn = torch.polar(torch.ones(TOKENS, SIZE // 2, dtype=torch.float64),
                       positions.unsqueeze(1) * rate)
    turned = [torch.view_as_complex(side.unflatten(2, (-1, 2)).contiguous()) * turn
              for side in (query, key)]
    logit = (turned[0] @ turned[1].mH).real / SIZE**0.5
    expected = attention.lin_out((logit.softmax(dim=2) @ value).transpose(0, 1).flatten(1))
    found = attention(x, PTR, rotation=rotation(positions))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('shape', [(TOKENS, SIZE, 2), (TOKENS - 1, SIZE // 2, 2), (TOKENS, 3)])
def test_rotations_of_other_tokens_are_refused(shape):
    with pytest.raises(ValueError, match="'rotation' must have shape .5, 3, 2. for 5 tokens"):
        layer()(torch.randn(TOKENS, CHANNELS, dtype=torch.float64), PTR,
                rotation=torch.zeros(shape))


def test_odd_heads_are_refused():
    with pytest.raises(ValueError, match="'channels' must be even"):
        RotaryPositions(8, 5)
