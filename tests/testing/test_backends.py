"""Examine every backend of this library that runs on a CPU by the public function."""

from __future__ import annotations

from functools import partial

import pytest

from graphattn import ops
from graphattn.functional import edge_attention
from graphattn.testing import Supports, check_attention
from tests.ops.test_backends import ON_CPUS, skip_if_missing


def declared(name: str) -> Supports:
    backend = ops.load(name)
    return Supports.everything(
        gate=backend.takes_gate, dropout=backend.takes_dropout,
        second_derivatives=backend.has_all_derivatives, isolates_nan=not backend.nan_leaks,
        # Torch's fused kernel recomputes weights from rounded logits up to sdpa.MAX_LOGIT.
        exact_logits=name != 'sdpa', compiles=False)


@pytest.mark.slow
@pytest.mark.parametrize('name', ON_CPUS)
def test_a_backend_is_right_and_refuses_what_it_does_not_declare(name):
    attention = partial(edge_attention, backend=skip_if_missing(name))
    report = check_attention(attention, supports=declared(name)).check()
    refused = {each.check for each in report.outcomes if each.status == 'refused'}
    supports = declared(name)
    assert refused == {check for check, is_declared in (
        ('gate', supports.gate), ('dropout, gradients', supports.dropout),
        ('dropout, frequencies', supports.dropout),
        ('second derivatives', supports.second_derivatives)) if not is_declared} | (
            {'strides', 'gradient of one input alone', 'double precision', 'nothing to attend to'}
            if not supports.gate else set())


@pytest.mark.slow
def test_a_traced_backend_is_right():
    supports = Supports.everything()
    check_attention(edge_attention, supports=supports, checks=['torch.compile']).check()
