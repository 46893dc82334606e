"""Every backend against dense attention in float64, written out by hand: :mod:`dense`.

A result may differ by one eps of its magnitude for each operation on its way (Higham, Accuracy and
Stability of Numerical Algorithms, Sec. 3.1); its magnitude is what the same formulas give for
absolute numbers. So bounds follow from the dtype and the sizes of the sums of every single case.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor

from graphattn import BipartiteGraph, kernels
from graphattn.functional import edge_attention
from tests.fuzz.budget import cases
from tests.fuzz.dense import Arrays, Dense
from tests.fuzz.strategies import (
    DTYPES,
    LAYOUTS,
    SEEDS,
    WIDTHS,
    AttentionCase,
    GraphCase,
    attention_cases,
    graph_cases,
    teleports,
)
from tests.kernels.test_backends import skip_if_missing

BACKENDS = ['auto', *kernels.BACKENDS]
WITH_HOPS = [name for name in BACKENDS if name != 'sdpa']
NODES = ('query', 'key', 'value')
HALF = (torch.bfloat16, torch.float16)
every_backend = pytest.mark.parametrize('backend', BACKENDS)
every_backend_with_hops = pytest.mark.parametrize('backend', WITH_HOPS)

Results = dict[str, Tensor]


def declared(backend: str) -> kernels.Backend:
    """What the backend says of itself; ``'auto'`` takes whatever some backend takes."""
    return kernels.load('gather' if backend == 'auto' else skip_if_missing(backend))


def attend(case: AttentionCase, backend: str, *, graph: BipartiteGraph | None = None,
           drawn: dict | None = None, dropout_p: float = 0.) -> Results:
    """Output, perhaps weights, and the gradients of all that is a Tensor."""
    graph = case.graph.build() if graph is None else graph
    drawn = {name: x.detach().requires_grad_() if isinstance(x, Tensor) else x
             for name, x in (case.draw() if drawn is None else drawn).items()}
    scale = 0.25 if case.exact else None
    out = edge_attention(graph=graph, **drawn, hops=case.hops, scale=scale, dropout_p=dropout_p,
                         return_attention_weights=case.wants_weights, backend=backend)
    outputs = dict(zip(('out', 'weight'), out if case.wants_weights else (out,)))
    leaves = {name: x for name, x in drawn.items() if isinstance(x, Tensor)}
    grads = torch.autograd.grad([x for x in outputs.values() if x.requires_grad], [*leaves.values()],
                                [case.cotangent(x) for x in outputs.values() if x.requires_grad],
                                allow_unused=True)
    return {**{name: x.detach() for name, x in outputs.items()},
            **{name: torch.zeros_like(leaves[name]) if grad is None else grad
               for name, grad in zip(leaves, grads)}}


# The oracle ##########################################################################


def dense(case: AttentionCase, graph: BipartiteGraph, drawn: dict,
          kept: Tensor | float = 1.) -> Dense:
    query, key, value = (heads_first(drawn[name]) for name in NODES)
    shape, ones = (graph.num_edges, case.heads), torch.ones(graph.num_edges)
    bias, gate = (on_pairs(graph, (x if x.dim() == 2 else x.unsqueeze(1)).expand(shape))
                  for x in (drawn.get('edge_bias', 0 * ones), drawn.get('edge_gate', ones)))
    teleport = spread(case, drawn, graph.num_queries)
    return Dense(
        query, key, value, bias, gate, graph.to_mask().numpy(),
        0.25 if case.exact else 1 / math.sqrt(case.channels),
        None if teleport is None else teleport.numpy()[..., None], case.hops == math.inf,
        kept if isinstance(kept, float) else on_pairs(graph, kept),
        heads_first(case.cotangent(drawn['value'].new_empty(
            graph.num_queries, *drawn['value'].shape[1:]))),
        on_pairs(graph, case.cotangent(drawn['value'].new_empty(shape)))
        if case.wants_weights else np.zeros((1, 1, 1)))


def spread(case: AttentionCase, drawn: dict, num_tokens: int) -> Tensor | None:
    """The teleport of each hop, float64 ``[hops, heads, num_tokens]``."""
    teleport = drawn.get('teleport', None if case.hops == 1 else 0.)
    if teleport is None:
        return None
    # Numbers are rounded as the kernels round them.
    teleport = torch.as_tensor(teleport, dtype=accumulation(case.dtype)).double()
    if case.teleport is not None and case.teleport.shape == 'each hop':
        teleport = teleport[:, None, None]
    shape = (1 if case.hops == math.inf else case.hops, num_tokens, case.heads)
    return teleport.expand(shape).transpose(1, 2)


def accumulation(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def heads_first(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().transpose(0, 1).numpy()


def on_pairs(graph: BipartiteGraph, edge_values: Tensor) -> np.ndarray:
    pairs = np.zeros((edge_values.size(1), graph.num_queries, graph.num_keys))
    pairs[:, graph.query.numpy(), graph.key.numpy()] = edge_values.detach().double().t().numpy()
    return pairs


def as_drawn(case: AttentionCase, graph: BipartiteGraph, drawn: dict, results: Arrays) -> Results:
    """In the shapes of what they are gradients of."""
    found = {}
    for name, x in results.items():
        x = torch.from_numpy(np.ascontiguousarray(x))
        if name in ('weight', 'edge_bias', 'edge_gate'):
            x = x[:, graph.query, graph.key].t()
        elif name == 'teleport':
            x = x.squeeze(-1).transpose(1, 2)
        else:
            x = x.transpose(0, 1)
        if name in drawn and isinstance(drawn[name], Tensor):
            is_shared = x.dim() > drawn[name].dim() and name.startswith('edge')
            found[name] = x.sum(1) if is_shared else x.sum_to_size(drawn[name].shape)
        elif name == 'out' or name == 'weight' and case.wants_weights:
            found[name] = x
    return found


def expect(case: AttentionCase, graph: BipartiteGraph, drawn: dict,
           kept: Tensor | float = 1.) -> tuple[Results, Results]:
    """What the results are, and how far each may be off."""
    oracle, finfo = dense(case, graph, drawn, kept), torch.finfo(accumulation(case.dtype))
    logit_dtype = np.float64 if case.dtype == torch.float64 else np.float32
    expected, magnitude = (as_drawn(case, graph, drawn, results) for results in (
        oracle.results(logit_dtype), oracle.magnitudes(logit_dtype, case.exact)))
    eps = finfo.eps * oracle.num_roundings()
    if case.dtype in HALF:  # results are rounded to it, and the output before its gradient is taken
        eps += 2 * torch.finfo(case.dtype).eps
    # What is smaller than any number of the dtype becomes 0.
    bound = {name: eps * x + 4 * torch.finfo(case.dtype).tiny * (1 + largest(drawn))
             for name, x in magnitude.items()}
    for name, x in expected.items():  # what the dtype cannot hold
        bound[name][x.abs() + bound[name] >= torch.finfo(case.dtype).max] = torch.inf
    return expected, bound


def largest(drawn: dict) -> float:
    return max([float(drawn[name].abs().max()) for name in NODES if drawn[name].numel()],
               default=0.)


def assert_within(actual: Results, expected: Results, bound: Results) -> None:
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        assert x.shape == expected[name].shape, name
        is_off = ~((x.double() - expected[name]).abs() <= bound[name]) & (bound[name] < torch.inf)
        if is_off.any():
            at = tuple(is_off.nonzero()[0].tolist())
            raise AssertionError(
                f'{name}{list(at)} is {float(x[at])!r} for {float(expected[name][at])!r} '
                f'+- {float(bound[name][at]):.2g}; {int(is_off.sum())} of {x.numel()} are off')


def check(case: AttentionCase, backend: str) -> None:
    case = case.within(declared(backend))
    graph, drawn = case.graph.build(), case.draw()
    actual = attend(case, backend, graph=graph, drawn=drawn)
    assert {x.dtype for x in actual.values()} == {case.dtype}
    assert_within(actual, *expect(case, graph, drawn))


# One hop #############################################################################


MODERATE = {
    'exact': st.booleans(), 'magnitude': st.sampled_from([1., 8.]),
    'bias': st.sampled_from([None, 'moderate', 'some -inf', 'all -inf']), 'gate': st.booleans(),
    'heads_differ': st.booleans(), 'layout': st.sampled_from(LAYOUTS),
    'wants_weights': st.booleans()}


@every_backend
@cases(40)
@given(case=attention_cases(**MODERATE))
def test_attention(backend, case):
    check(case, backend)


@every_backend
@cases(20)
@given(case=attention_cases(
    exact=st.just(True), magnitude=st.sampled_from([2. ** -14, 1., 2. ** 6, 2. ** 12]),
    bias=st.sampled_from([None, 'high', 'mixed']), gate=st.booleans(), heads_differ=st.booleans(),
    wants_weights=st.booleans()))
def test_extreme_logits(backend, case):
    check(case, backend)


# Several #############################################################################


SEVERAL = {'hops': st.integers(1, 6), **MODERATE}


@every_backend_with_hops
@cases(20)
@given(case=attention_cases(square=True, teleport=teleports(ends=('none',)), **SEVERAL))
def test_hops(backend, case):
    check(case, backend)


@every_backend_with_hops
@cases(15)
@given(case=attention_cases(square=True, teleport=teleports(ends=('zeros', 'ones', 'both')),
                            **SEVERAL))
def test_teleport_at_its_ends(backend, case):
    check(case, backend)


@every_backend_with_hops
@cases(15)
@given(case=attention_cases(
    square=True, hops=st.just(math.inf), teleport=teleports(
        ends=('none', 'ones'), shapes=('number', '[]', '[heads]', '[tokens, heads]')),
    **MODERATE))
def test_all_hops(backend, case):
    check(case, backend)
