"""Examine every backend of this library that runs on a CPU by the public function."""

from dataclasses import replace
from functools import partial

import pytest

from graphattn import ops
from graphattn.functional import edge_attention
from graphattn.testing import Report, Supports, check_attention
from graphattn.testing.checks import CHECKS, Setting
from tests.ops.test_backends import IN_CHUNKS, ON_CPUS, loops_of, skip_if_missing


def declared(name: str) -> Supports:
    backend = ops.load(name)
    return Supports.everything(
        gate=backend.takes_gate,
        softcap=backend.takes_softcap, sink=backend.takes_sink,
        second_derivatives=backend.has_all_derivatives, isolates_nan=not backend.nan_leaks,
        # Torch's fused kernel recomputes weights from rounded logits up to sdpa.MAX_LOGIT.
        exact_logits=name != 'sdpa', compiles=False)


# Graphs of few edges have loops of their own. Those of many edges are given few for these checks;
# softcaps and sinks are those of the other loops, and would be compiled for 12 s.
OF_CHUNKS = ['graphs', 'half precision', 'bias', 'gate', 'large exact logits', 'sizes of logits',
             'NaN without an edge', 'nothing to attend to', 'strides',
             'gradient of one input alone']


@pytest.mark.slow
def test_the_loops_for_many_edges_are_right(monkeypatch):
    backend = loops_of(IN_CHUNKS, monkeypatch)
    supports = replace(declared(backend), softcap=False, sink=False)
    check_attention(partial(edge_attention, backend=backend), supports=supports, checks=OF_CHUNKS)


@pytest.mark.slow
@pytest.mark.parametrize('name', ON_CPUS)
def test_a_backend_is_right_and_refuses_what_it_does_not_declare(name):
    attention, supports = partial(edge_attention, backend=skip_if_missing(name)), declared(name)
    report = check_attention(attention, supports=supports)
    lacking = {(check.name, case.name) for check in CHECKS for case in check.cases(
        Setting(supports, None)) if supports.lacks(case)}
    refused = {(each.check, each.case) for each in report.outcomes if each.status == 'refused'}
    assert refused == lacking - not_made(report)


def not_made(report: Report) -> set[tuple[str, str]]:
    return {(each.check, each.case) for each in report.outcomes if each.status == 'not supported'}


@pytest.mark.slow
def test_weights_that_are_returned_give_the_output():
    """Fused backends compute them in a pass of their own, like the others."""
    def attention(query, key, value, graph, **terms):
        out, weight = edge_attention(query, key, value, graph, backend='numba',
                                     return_attention_weights=True, **terms)
        assert weight.shape == (graph.num_edges, query.size(1))
        return out

    check_attention(attention, supports=declared('numba'), checks=[
        'graphs', 'bias', 'gate', 'sink', 'grouped queries', 'double precision'])


@pytest.mark.slow
def test_a_traced_backend_is_right():
    supports = Supports.everything()
    check_attention(edge_attention, supports=supports, checks=['torch.compile'])
