"""Smaller cases that fail in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.case import TERMS, Case


def smallest(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """Return a smaller case for which ``fails`` is still true, found within ``seconds``."""
    end = time.monotonic() + seconds

    def in_time(_: Case) -> bool:
        return time.monotonic() < end

    while smaller := next(filter(fails, takewhile(in_time, parts(case))), None):
        case = smaller
    return case


def parts(case: Case) -> Iterator[Case]:
    """Yield smaller cases that lack a part, such as a query, an edge or a bias, large parts
    first."""
    if not case.is_fixed:
        if case.graph.num_segments != 1:
            yield replace(case, graph=BipartiteGraph(
                case.graph.edge_index.as_tensor(), case.graph.num_queries, case.graph.num_keys))
        if case.dropout_p == 0 and case.graph.is_square:
            yield from (_keep_keys(_keep_queries(case, kept), kept)
                        for kept in without_a_run(case.graph.num_keys))
        yield from (_keep_queries(case, kept) for kept in without_a_run(case.graph.num_queries))
        if case.dropout_p == 0:  # values are unit vectors of their keys there
            yield from (_keep_keys(case, kept) for kept in without_a_run(case.graph.num_keys))
        yield from (_keep_edges(case, kept) for kept in without_a_run(case.graph.num_edges))
    for kept in without_a_run(case.kv_heads):
        yield _keep_heads(case, kept)
    if case.dropout_p == 0:
        for names, size in ((('query', 'key'), case.channels),
                            (('value', 'cotangent'), case.value_channels)):
            for kept in without_a_run(size):
                yield case.changed(**{name: case.tensors[name][..., kept] for name in names})
    for name in TERMS:
        if name in case.tensors:
            yield replace(case, tensors={key: x for key, x in case.tensors.items() if key != name})
    if case.softcap is not None:
        yield replace(case, softcap=None)
    yield from _plainer(case)


def without_a_run(size: int) -> Iterator[Tensor]:
    """Yield ``0:size`` without runs of consecutive indices, first of half of them, then of
    fewer."""
    everything = torch.arange(size)
    length = -(-size // 2)
    while length > 0 and size > 1:
        for begin in range(0, size, length):
            yield torch.cat([everything[:begin], everything[begin + length:]])
        length = length // 2


def _keep_queries(case: Case, kept: Tensor) -> Case:
    nodes = {name: case.tensors[name][kept] for name in ('query', 'cotangent')}
    return _on_submask(case, case.graph.to_mask()[kept],
                       torch.isin(case.graph.query, kept)).changed(**nodes)


def _keep_keys(case: Case, kept: Tensor) -> Case:
    nodes = {name: case.tensors[name][kept] for name in ('key', 'value')}
    return _on_submask(case, case.graph.to_mask()[:, kept],
                       torch.isin(case.graph.key.long(), kept)).changed(**nodes)


def _keep_edges(case: Case, kept: Tensor) -> Case:
    chosen = torch.zeros(case.graph.num_edges, dtype=torch.bool)
    chosen[kept] = True
    mask = torch.zeros_like(case.graph.to_mask())
    mask[case.graph.query[kept], case.graph.key.long()[kept]] = True
    return _on_submask(case, mask, chosen)


def _on_submask(case: Case, mask: Tensor, edges: Tensor) -> Case:
    on_edges = {name: case.tensors[name][edges] for name in ('edge_bias', 'edge_gate')
                if name in case.tensors}
    return replace(case, graph=BipartiteGraph.from_mask(mask)).changed(**on_edges)


def _keep_heads(case: Case, kept: Tensor) -> Case:
    group = case.heads // case.kv_heads
    of_queries = (kept.unsqueeze(1) * group + torch.arange(group)).flatten()
    return case.changed(**{name: x.index_select(min(1, x.dim() - 1), kept if name in (
        'key', 'value') else of_queries) for name, x in case.tensors.items()})


def _plainer(case: Case) -> Iterator[Case]:
    for name, x in case.tensors.items():
        if case.dropout_p > 0 and name == 'value':
            continue
        whole, decimal = x.round() + 0., x.mul(10).round() / 10
        for plain in (torch.zeros_like(x), torch.ones_like(x), whole, decimal):
            if x.isfinite().all() and not torch.equal(plain, x) and _digits(plain) < _digits(x):
                yield case.changed(**{name: plain})


def _digits(x: Tensor) -> int:
    return len(str(x.tolist()))
