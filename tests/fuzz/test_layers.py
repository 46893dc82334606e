"""Layers and models of any configuration: what the dense reference gives, finite, and copied."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.fuzz.budget import cases
from tests.fuzz.strategies import LayerCase, layer_cases
from tests.ops.test_backends import BACKENDS, skip_if_missing

Numbers = dict[str, Tensor]


def step(case: LayerCase, module: nn.Module) -> Numbers:
    """Output and gradients of one step; a parameter without a gradient has none."""
    module.zero_grad()
    out = case.run(module)
    out.square().sum().backward()
    return {'out': out.detach(), **{name: parameter.grad for name, parameter
                                    in module.named_parameters() if parameter.grad is not None}}


def assert_same(actual: Numbers, expected: Numbers, tolerance: float = 0.) -> None:
    """Up to a share of the largest of all numbers: some gradients are sums that cancel."""
    assert actual.keys() == expected.keys()
    largest = max((x.abs().max().item() for x in expected.values() if x.numel()), default=0.)
    for name, x in actual.items():
        is_off = ~((x - expected[name]).abs() <= tolerance * largest)
        assert not is_off.any(), f'{name}: {x[is_off]} for {expected[name][is_off]}'


@pytest.mark.parametrize('backend', [
    name for name in ('auto', *BACKENDS) if name != 'reference'])
@cases(6)
@given(case=layer_cases(dropout=st.just(0.)), trains=st.booleans())
def test_every_backend_gives_what_the_reference_gives(backend, case, trains):
    """Results are in float64, where 2 ** -30 leaves room for 4 million roundings."""
    skip_if_missing(backend)
    results = [step(case, case.build(name, torch.float64).train(trains))
               for name in (backend, 'reference')]
    assert_same(*results, tolerance=2. ** -30)


@cases(15)
@given(case=layer_cases(dropout=st.sampled_from([0., 0.1, 0.8])))
def test_a_layer_is_finite_and_its_copies_are_the_same(case):
    module = case.build('auto', torch.float32)
    fresh = copy.deepcopy(module)
    trained = step(case, module.train())
    with torch.no_grad():
        evaluated = case.run(module.eval())
    for name, x in {**trained, 'evaluated': evaluated}.items():
        assert x.isfinite().all(), name
    for each in (fresh, copy.deepcopy(module), module):
        assert_same(step(case, each.train()), trained)
        with torch.no_grad():
            assert_same({'out': case.run(each.eval())}, {'out': evaluated})
