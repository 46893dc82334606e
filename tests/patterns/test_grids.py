"""Windows over grids beside what their papers' own code computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphattn.patterns import Neighborhood, ShiftedWindows


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


def test_every_query_of_a_neighborhood_has_as_many_keys():
    graph = Neighborhood((3, 5, 4), (9, 8), dilation=(2, 1, 2)).build(7 * 72)
    assert (graph.in_degree() == 3 * 5 * 4).all()


def test_frames_of_a_video_see_the_frames_before():
    graph = Neighborhood((2, 3, 3), (4, 4), causal=(True, False, False)).build(3 * 16)
    frames = graph.key // 16 - graph.query // 16
    assert frames.unique().tolist() == [-1, 0]


def test_one_value_for_all_axes_is_printed_once():
    assert repr(Neighborhood((3, 3), [4])) == 'Neighborhood(window=3, inner=(4,))'
    assert Neighborhood((3, 3), (4,)) == Neighborhood(3, [4])
