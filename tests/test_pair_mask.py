"""Pairs that share a value, and masks of such values for a sequence."""

import math
import weakref

import pytest
import torch

from graphattn.graphs.pair_layout import DiagonalLayout, FreeLayout
from graphattn.graphs.pair_mask import PairMask

LAYOUTS = [layout(size, border) for layout in (FreeLayout, DiagonalLayout)
           for border in (False, True) for size in (3, 6)]
every_layout = pytest.mark.parametrize('layout', LAYOUTS, ids=repr)


def shares(layout, i: int, j: int, length: int):
    """Return the property of all pairs that share a value with pair (i, j), by the definition."""
    if layout.border and {i, j} & {0, length - 1}:
        return 'on'
    if isinstance(layout, DiagonalLayout):
        inner_size = layout.size - 2 if layout.border else layout.size
        return abs(i - j) if abs(i - j) < inner_size else 'off'
    position = [*range(length - 1), layout.size - 1]
    pair = position[i], position[j]
    return pair


def full_length_numbers(layout) -> dict:
    index = layout.index(layout.size).tolist()
    tokens = range(layout.size)
    return {shares(layout, i, j, layout.size): index[i][j] for i in tokens for j in tokens}


@every_layout
def test_values_are_numbered_without_gaps(layout):
    number_of = full_length_numbers(layout)
    number_of.pop('on', None)
    assert sorted(number_of.values()) == list(range(layout.num_values))


@every_layout
def test_pairs_share_values_by_the_rule_at_every_length(layout):
    constants = {'on': layout.num_values, 'off': layout.num_values + 1}
    number_of = full_length_numbers(layout) | constants
    for length in range(layout.size + 1 if layout.max_length else layout.size + 4):
        index = layout.index(length).tolist()
        assert index == [[number_of[shares(layout, i, j, length)] for j in range(length)]
                         for i in range(length)]


@every_layout
def test_multiplicity_counts_the_pairs(layout):
    index = layout.index(layout.size).flatten().tolist()
    numbers = range(layout.num_values + 2)
    assert layout.multiplicity().tolist() == [index.count(number) for number in numbers]


@every_layout
@pytest.mark.parametrize('share', [0., 0.4, 1.])
def test_rows_are_those_of_the_pairs_that_are_on(layout, share):
    torch.manual_seed(0)
    is_on = torch.rand(3, layout.num_values) < share
    for length in range(layout.size + 1 if layout.max_length else layout.size + 4):
        index = layout.index(length)
        of_pairs = torch.cat([is_on, torch.tensor([[True, False]] * 3)], dim=1)[:, index]
        degree, key, value = layout.rows(is_on, length)
        assert torch.equal(degree, of_pairs.sum(dim=2))
        _, query, expected = of_pairs.nonzero(as_tuple=True)
        assert torch.equal(key.long(), expected)
        assert torch.equal(value.long(), index[query, expected])


@pytest.mark.parametrize('make, match', [
    (lambda: DiagonalLayout(2), r"'size' must be at least 3 with a border.* \(got 2\)"),
    (lambda: make(torch.zeros(2, 3)), r"'values' must.*\[heads, 4\] .*\(2, 3\)"),
    (lambda: make(torch.full((2, 4), 1.5)), r"'values' must be in \[0, 1\] \(got 1.5"),
    (lambda: make(torch.full((2, 4), math.nan)), r"'values' must .* \(got nan\)"),
    (lambda: make(torch.ones(2, 4), logit_drop=0), "'logit_drop' must be positive"),
])
def test_bad_arguments(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def make(values, **options):
    return PairMask(values, FreeLayout(2), **options)


def random_mask(layout, heads: int = 2, seed: int = 0, **options) -> PairMask:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(heads, layout.num_values, dtype=torch.double, generator=generator)
    return PairMask(values, layout, **options)


@every_layout
def test_bias_is_equation_6(layout):
    mask = random_mask(layout, logit_drop=3.)
    for length in range(layout.size + 1):
        torch.testing.assert_close(mask.bias(length), -3 * (1 - mask.dense(length)))


@every_layout
def test_norm_is_the_sum_over_heads_and_all_pairs(layout):
    mask = random_mask(layout, heads=3)
    mask.values.requires_grad_()
    dense = mask.dense(layout.size)
    torch.testing.assert_close(mask.norm(), dense.sum())
    assert mask.density() == pytest.approx(float(dense.detach().mean()))
    mask.norm().backward()
    multiplicity = layout.multiplicity()[:-2].double()
    assert torch.equal(mask.values.grad, multiplicity.expand(3, -1))


@pytest.mark.slow
def test_the_index_lives_as_long_as_the_mask():
    mask = random_mask(FreeLayout(4))
    mask.bias(3)
    index = weakref.ref(mask._index(3))
    assert mask._index(3) is index()
    del mask
    assert index() is None
