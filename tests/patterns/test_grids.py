"""Windows over grids beside what their papers' own code computes."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from graphattn.functional import edge_attention
from graphattn.patterns import Neighborhood, ShiftedWindows


def nearest(at: int, length: int, window: int, dilation: int, causal: bool) -> list[int]:
    """Return the nearest coordinates of an axis that equal ``at`` modulo the dilation."""
    alike = [key for key in range(at % dilation, length, dilation) if key <= at or not causal]
    if causal:
        alike = [key for key in alike if key > at - window * dilation]
    return sorted(alike, key=lambda key: abs(key - at))[:window]


def neighborhood_attention(query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...],
                           *axes: tuple) -> Tensor:
    """Return NATTEN's attention, query by query; ``axes`` are its kernel size, dilation and
    causality along each axis."""
    out = torch.empty_like(query).view(*lengths, *query.shape[1:])
    query, key, value = (each.view(*lengths, *each.shape[1:]) for each in (query, key, value))
    for place in product(*map(range, lengths)):
        keys = [*product(*map(nearest, place, lengths, *axes))]
        logit = torch.stack([(query[place] * key[each]).sum(-1) for each in keys])
        weight = (logit / math.sqrt(query.size(-1))).softmax(0).unsqueeze(-1)
        out[place] = sum(weight[number] * value[each] for number, each in enumerate(keys))
    return out.flatten(0, len(lengths) - 1)


@pytest.mark.parametrize('lengths, window, dilation, causal', [
    ((11,), (5,), (2,), (False,)), ((6, 7), (3, 5), (1, 1), (False, False)),
    ((7, 9), (3, 3), (2, 3), (False, False)), ((6, 6), (3, 3), (1, 2), (False, True)),
    ((3, 4, 5), (3, 3, 5), (1, 1, 1), (True, False, False))])
def test_attention_is_that_of_natten(lengths, window, dilation, causal):
    graph = Neighborhood(window, lengths[1:], dilation, causal).build(math.prod(lengths))
    inputs = torch.randn(3, graph.num_queries, 2, 4, dtype=torch.double).unbind()
    expected = neighborhood_attention(*inputs, lengths, window, dilation, causal)
    torch.testing.assert_close(edge_attention(*inputs, graph), expected)


def by_rolling(height: int, width: int, window: int, shift: int) -> Tensor:
    """Return the mask of a Swin block: tokens are rolled, cut into windows, and those that came
    around a border are kept apart from the others."""
    bounds = slice(0, -window), slice(-window, -shift or None), slice(-shift or height, None)
    region = torch.zeros(height, width)
    for i, rows in enumerate(bounds):
        for j, columns in enumerate(bounds):
            region[rows, columns] = 3 * i + j
    number = torch.arange(height * width).view(height, width).roll((-shift, -shift), (0, 1))
    mask = torch.zeros(height * width, height * width, dtype=torch.bool)
    for top in range(0, height, window):
        for left in range(0, width, window):
            box = slice(top, top + window), slice(left, left + window)
            token, of_token = number[box].flatten(), region[box].flatten()
            mask[token[:, None], token] = of_token[:, None] == of_token
    return mask


@pytest.mark.parametrize('shift', [0, 1, 2])
def test_shifted_windows_are_those_of_a_rolled_image(shift):
    graph = ShiftedWindows(4, (12,), shift=shift and 4 - shift).build(96)
    assert torch.equal(graph.to_mask(), by_rolling(8, 12, 4, 4 - shift if shift else 0))
