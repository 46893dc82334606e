"""Every backend against dense attention in float64, written out by hand: :mod:`dense`.

A result may differ by one eps of its magnitude for each operation on its way (Higham, Accuracy and
Stability of Numerical Algorithms, Sec. 3.1); its magnitude is what the same formulas give for
absolute numbers. So bounds follow from the dtype and the sizes of the sums of every single case.
"""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor

from graphattn import BipartiteGraph, ops
from graphattn.functional import edge_attention
from graphattn.ops.edge_math import highest_logit
from tests.fuzz.budget import cases
from tests.fuzz.dense import Arrays, Dense
from tests.fuzz.strategies import (
    DTYPES,
    LAYOUTS,
    SEEDS,
    Arguments,
    AttentionCase,
    GraphCase,
    attention_cases,
    graph_cases,
    teleports,
)
from tests.ops.test_backends import ON_CPUS, skip_if_missing

BACKENDS = ['auto', *ON_CPUS]
WITH_HOPS = [name for name in BACKENDS if name != 'sdpa']
NODES = ('query', 'key', 'value')
HALF = (torch.bfloat16, torch.float16)
every_backend = pytest.mark.parametrize('backend', BACKENDS)
every_backend_with_hops = pytest.mark.parametrize('backend', WITH_HOPS)

Results = dict[str, Tensor]


def declared(backend: str) -> ops.Backend:
    """Return the declaration of the backend; ``'auto'`` takes whatever some backend takes."""
    return ops.load('gather' if backend == 'auto' else skip_if_missing(backend))


def attend(case: AttentionCase, backend: str, graph: BipartiteGraph, drawn: Arguments, *,
           cotangent: Tensor | None = None, dropout_p: float = 0.) -> Results:
    """Output, perhaps weights, and the gradients of all that takes one."""
    drawn = {name: x.detach().requires_grad_(case.terms_learn or not name.startswith('edge'))
             if isinstance(x, Tensor) else x for name, x in drawn.items()}
    out = edge_attention(graph=graph, **drawn, hops=case.hops, scale=case.scale,
                         dropout_p=dropout_p, return_attention_weights=case.wants_weights,
                         backend=backend)
    outputs = dict(zip(('out', 'weight'), out if case.wants_weights else (out,)))
    leaves = {name: x for name, x in drawn.items()
              if isinstance(x, Tensor) and x.requires_grad}
    cotangents = [case.cotangent(x) for x in outputs.values()]
    cotangents = cotangents if cotangent is None else [cotangent, *cotangents[1:]]
    grads = torch.autograd.grad([*outputs.values()], [*leaves.values()], cotangents,
                                allow_unused=True)
    return {**{name: x.detach() for name, x in outputs.items()},
            **{name: torch.zeros_like(leaves[name]) if grad is None else grad
               for name, grad in zip(leaves, grads)}}


# The oracle ##########################################################################


def dense(case: AttentionCase, graph: BipartiteGraph, drawn: Arguments,
          kept: Tensor | float = 1.) -> Dense:
    query, key, value = (heads_first(drawn[name]) for name in NODES)
    shape, ones = (graph.num_edges, case.heads), torch.ones(graph.num_edges)
    bias, gate = (on_pairs(graph, (x if x.dim() == 2 else x.unsqueeze(1)).expand(shape))
                  for x in (drawn.get('edge_bias', 0 * ones), drawn.get('edge_gate', ones)))
    teleport = spread(case, drawn, graph.num_queries)
    return Dense(
        query, key, value, bias, gate, graph.to_mask().numpy(),
        case.scale or 1 / math.sqrt(case.channels),
        None if teleport is None else teleport.numpy()[..., None], case.hops == math.inf,
        kept if isinstance(kept, float) else on_pairs(graph, kept),
        heads_first(case.cotangent(drawn['value'].new_empty(
            graph.num_queries, *drawn['value'].shape[1:]))),
        on_pairs(graph, case.cotangent(drawn['value'].new_empty(shape)))
        if case.wants_weights else np.zeros((1, 1, 1)))


def spread(case: AttentionCase, drawn: Arguments, num_tokens: int) -> Tensor | None:
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


def as_drawn(case: AttentionCase, graph: BipartiteGraph, drawn: Arguments, results: Arrays
             ) -> Results:
    """Return gradients in the shapes of their inputs."""
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


def expect(case: AttentionCase, graph: BipartiteGraph, drawn: Arguments,
           kept: Tensor | float = 1.) -> tuple[Results, Results]:
    """Return the results, and how far each may be off."""
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


def largest(drawn: Arguments) -> float:
    return max([float(drawn[name].abs().max()) for name in NODES if drawn[name].numel()],
               default=0.)


def assert_within(actual: Results, expected: Results, bound: Results) -> None:
    assert actual.keys() <= expected.keys()
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
    actual = attend(case, backend, graph, drawn)
    assert {x.dtype for x in actual.values()} == {case.dtype}
    right = [expect(case, graph, drawn)]
    if 'edge_bias' in drawn and backend in ('auto', 'sdpa'):
        right.append(expect(case, graph, below_highest(graph, drawn)))
    assert_within_one(actual, right)
    with torch.no_grad():  # where others may be faster
        evaluated = edge_attention(graph=graph, **drawn, hops=case.hops, scale=case.scale,
                                   backend=backend)
    assert_within_one({'out': evaluated}, right)


def below_highest(graph: BipartiteGraph, drawn: Arguments) -> Arguments:
    """Subtract from biases the highest of their query, as dense attention takes them: less of huge
    biases that are equal is rounded off."""
    bias = drawn['edge_bias'].detach()
    bias = bias.unsqueeze(1) if bias.dim() == 1 else bias
    highest = highest_logit(bias, graph.query, graph.num_queries)
    highest = highest.masked_fill(highest == -torch.inf, 0.)[graph.query]
    return drawn | {'edge_bias': (bias - highest).view_as(drawn['edge_bias'])}


def assert_within_one(actual: Results, right: list[tuple[Results, Results]]) -> None:
    *others, last = right
    for expected, bound in others:
        with suppress(AssertionError):
            return assert_within(actual, expected, bound)
    assert_within(actual, *last)


# One hop #############################################################################


MODERATE = {
    'exact': st.booleans(), 'magnitude': st.sampled_from([1., 8.]),
    'bias': st.sampled_from([None, 'moderate', 'some -inf', 'all -inf']), 'gate': st.booleans(),
    'heads_differ': st.booleans(), 'layout': st.sampled_from(LAYOUTS),
    'terms_learn': st.booleans(), 'wants_weights': st.booleans()}


@every_backend
@cases(12)
@given(case=attention_cases(**MODERATE))
def test_attention(backend, case):
    check(case, backend)


@every_backend
@cases(12)
@given(case=attention_cases(
    exact=st.just(True), magnitude=st.sampled_from([1., 2. ** -14, 2. ** 12]),
    bias=st.sampled_from(['high', 'mixed', None]), gate=st.booleans(), heads_differ=st.booleans(),
    terms_learn=st.booleans(), wants_weights=st.booleans()))
def test_extreme_logits(backend, case):
    check(case, backend)


# Several #############################################################################


SEVERAL = {'hops': st.integers(1, 6), **MODERATE}


@every_backend_with_hops
@cases(10)
@given(case=attention_cases(
    graph_cases(square=True), teleport=teleports(ends=('none',)), **SEVERAL))
def test_hops(backend, case):
    check(case, backend)


@every_backend_with_hops
@cases(10)
@given(case=attention_cases(
    graph_cases(square=True), teleport=teleports(ends=('zeros', 'ones', 'both')), **SEVERAL))
def test_teleport_at_its_ends(backend, case):
    check(case, backend)


@every_backend_with_hops
@cases(4)
@given(case=attention_cases(
    graph_cases(square=True), hops=st.just(math.inf), teleport=teleports(
        ends=('none', 'low', 'ones'), shapes=('number', '[]', '[heads]', '[tokens, heads]')),
    **MODERATE))
def test_all_hops(backend, case):
    check(case, backend)


# Far apart ###########################################################################


@pytest.mark.parametrize('backend', [name for name in BACKENDS if name != 'reference'])
@cases(8)
@given(case=attention_cases(
           graph_cases(small=True), widths=st.integers(1, 5), max_heads=2,
           # Loops of float64 for so many nodes would be compiled here, for 20 s.
           dtypes=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
           bias=st.sampled_from([None, 'moderate']),
           gate=st.booleans(), heads_differ=st.booleans(), wants_weights=st.booleans()),
       num_nodes=st.sampled_from([2**16 + 1, 2**16, 2**16 - 1, 2**16 + 2]),
       side=st.sampled_from(['queries', 'keys', 'both']))
def test_nodes_far_apart(backend, case, num_nodes, side):
    """The nodes of a small graph among as many idle ones as two bytes can just number."""
    case = case.within(declared(backend))
    if backend == 'sdpa' and side == 'both':
        side = 'keys'  # a mask of all pairs would be 4 GiB
    graph, drawn = case.graph.build(), case.draw()
    num_queries, query_at = far_apart(graph.num_queries, num_nodes, side != 'keys', case.seed)
    num_keys, key_at = far_apart(graph.num_keys, num_nodes, side != 'queries', case.seed + 1)
    far = BipartiteGraph.from_edge_index(torch.stack([key_at[graph.key], query_at[graph.query]]),
                                         num_queries, num_keys)
    rows = {'query': (num_queries, query_at), 'key': (num_keys, key_at),
            'value': (num_keys, key_at), 'out': (num_queries, query_at)}
    placed = {name: put(x, *rows[name]) if name in rows else x for name, x in drawn.items()}
    cotangent = put(case.cotangent(drawn['value'].new_empty(
        graph.num_queries, *drawn['value'].shape[1:])), *rows['out'])
    actual = attend(case, backend, far, placed, cotangent=cotangent)
    for name, (num_rows, at) in rows.items():
        is_idle = torch.ones(num_rows, dtype=torch.bool).index_fill(0, at, False)
        assert not actual[name][is_idle].any(), name
        actual[name] = actual[name][at]
    assert_within(actual, *expect(case, graph, drawn))


def far_apart(num_here: int, num_nodes: int, is_far: bool, seed: int) -> tuple[int, Tensor]:
    """Return the number of nodes, and which of them are the graph's: the last is one."""
    if not is_far or num_here == 0:
        return num_here, torch.arange(num_here)
    others = np.random.default_rng(seed).choice(num_nodes - 1, num_here - 1, replace=False)
    return num_nodes, torch.from_numpy(np.sort(np.append(others, num_nodes - 1)))


def put(x: Tensor, num_rows: int, at: Tensor) -> Tensor:
    return x.new_zeros(num_rows, *x.shape[1:]).index_put((at,), x)


# What is not a number ################################################################


@every_backend
@cases(20)
@given(case=attention_cases(
           graph_cases(square=True, small=True, densities=(0.9, 0.7, 0.4)),
           widths=st.integers(1, 9), bias=st.just('moderate'), gate=st.booleans(),
           heads_differ=st.just(True), terms_learn=st.booleans(),
           hops=st.sampled_from([1, 1, 2, 3])),
       poisoned=st.sampled_from(['query', 'key', 'value', 'edge_bias']),
       poison=st.sampled_from([math.nan, math.inf, -math.inf]), where=SEEDS)
def test_poison_stays_where_it_is_read(backend, case, poisoned, poison, where):
    says = declared(backend)
    case = case.within(says)
    graph = case.graph.build()
    case = case if says.returns_weights else replace(case, hops=1)
    drawn = case.draw()
    if drawn[poisoned].size(0) == 0:
        return
    place, head = where % drawn[poisoned].size(0), where % case.heads
    drawn[poisoned][place, head] = poison
    actual = attend(case, backend, graph, drawn)
    harmless = {**drawn, poisoned: drawn[poisoned].nan_to_num(0., 0., 0.)}
    expected, bound = expect(case, graph, harmless)
    reached = reach(graph, poisoned, place, everywhere=says.nan_leaks or case.hops > 1)
    for name in actual:
        in_head = (reached[name], head) if bound[name].dim() > 1 else (reached[name],)
        bound[name][in_head] = torch.inf
    assert_within(actual, expected, bound)
    if math.isnan(poison) and case.hops == 1:
        readers = graph.query[edges_that_read(graph, poisoned, place)]
        assert actual['out'][readers, head].isnan().all()


def edges_that_read(graph: BipartiteGraph, poisoned: str, place: int) -> Tensor:
    """Return which edges read the poisoned value, bool ``[num_edges]``."""
    return {'query': graph.query, 'edge_bias': torch.arange(graph.num_edges)}.get(
        poisoned, graph.key) == place


def reach(graph: BipartiteGraph, poisoned: str, place: int, everywhere: bool) -> dict[str, Tensor]:
    """Return which rows of each result may be poisoned: those of the queries that read it and of
    what they attend to, or those of the whole segment."""
    queries, keys = (torch.zeros(n, dtype=torch.bool) for n in (graph.num_queries, graph.num_keys))
    queries[graph.query[edges_that_read(graph, poisoned, place)]] = True
    if everywhere:
        segments = graph.segments.of_queries()
        node = graph.query[place] if poisoned == 'edge_bias' else place  # the graph is square
        queries = keys = segments == segments[node]
    else:
        keys[graph.key[queries[graph.query]]] = True
    if poisoned == 'query':
        queries[place] = True
    elif poisoned != 'edge_bias':
        keys[place] = True
    edges = queries[graph.query]
    return {'out': queries, 'query': queries, 'key': keys, 'value': keys, 'edge_bias': edges,
            'edge_gate': edges}


# Dropout #############################################################################


@every_backend
@cases(10)
@given(case=attention_cases(
           graph_cases(square=True, small=True), widths=st.integers(1, 9),
           bias=st.sampled_from([None, 'moderate']), gate=st.booleans(),
           heads_differ=st.booleans(), hops=st.integers(1, 3)),
       dropout_p=st.sampled_from([0.1, 0.5, 0.9]))
def test_dropout_of_a_seed_is_one_mask(backend, case, dropout_p):
    """It is read off the output for values that tell the keys apart, and then is that of the output
    and of all gradients, for any values."""
    says = declared(backend)
    case = replace(case.within(says), hops=case.hops if says.returns_weights else 1)
    graph, drawn = case.graph.build(), case.draw()
    kept = kept_edges(case, backend, graph, drawn, dropout_p)
    if case.hops > 1:
        drawn['teleport'] = 0.25
    torch.manual_seed(case.seed)
    actual = attend(case, backend, graph, drawn, dropout_p=dropout_p)
    assert_within(actual, *expect(case, graph, drawn, kept / (1 - dropout_p)))


def kept_edges(case: AttentionCase, backend: str, graph: BipartiteGraph, drawn: Arguments,
               dropout_p: float) -> Tensor:
    """Return which weights dropout keeps, ``[num_edges, heads]`` of 0 and 1."""
    one_hot = torch.eye(graph.num_keys, dtype=case.dtype).unsqueeze(1).expand(-1, case.heads, -1)
    hops = {} if case.hops == 1 else {'hops': case.hops, 'teleport': (0., *[1.] * (case.hops - 1))}
    # As the pass that is looked at: some backends have another one where no gradient is taken.
    drawn = {name: x.detach().requires_grad_() for name, x in drawn.items()}
    torch.manual_seed(case.seed)
    out = edge_attention(graph=graph, **{**drawn, 'value': one_hot}, **hops, dropout_p=dropout_p,
                         backend=backend)
    return (out.detach()[graph.query, :, graph.key] != 0).double()


@every_backend
@cases(6)
@given(dropout_p=st.floats(0.01, 0.99), heads=st.integers(1, 4), seed=SEEDS,
       dtype=DTYPES)
def test_dropout_keeps_its_share(backend, dropout_p, heads, seed, dtype):
    """Kept weights are independent: alone, and in pairs of neighbours and of heads, they are as
    many as the binomial distribution allows with a probability of all but 1e-12."""
    skip_if_missing(backend)
    case = AttentionCase(GraphCase(((40, 40),), 1., 0., seed), heads, dtype=dtype, seed=seed)
    graph, drawn = case.graph.build(), case.draw()
    kept = kept_edges(case, backend, graph, drawn, dropout_p).view(40, 40, heads)
    pairs = [kept[:, ::2] * kept[:, 1::2], kept[::2] * kept[1::2]]
    pairs += [kept[..., 0] * kept[..., 1]] if heads > 1 else []
    for both, share in [(kept, 1 - dropout_p), *((pair, (1 - dropout_p) ** 2) for pair in pairs)]:
        distribution = binom(both.numel(), share)
        assert distribution.cdf(both.sum()) > 1e-12 and distribution.sf(both.sum() - 1) > 1e-12
