"""The checks: cases, and what is required of each. A test takes a kernel and a case, returns the
largest error in units of its tolerance, and raises :class:`~graphattn.testing.call.Mismatch`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.call import Kernel, Mismatch, compare, raising
from graphattn.testing.case import (
    GRAPHS,
    TERMS,
    Case,
    across_tiles,
    draw,
    idle_nodes,
    random_graph,
)
from graphattn.testing.definition import attend, define, tolerance
from graphattn.testing.supports import DTYPES, Supports

WIDTHS = (1, 3, 24, 80, 192, 576)
SOME_GRAPHS = 'square', 'hub', 'rows of all lengths', 'ragged batch', 'more keys'
SOFTCAP = 1.5  # of logits about 1
REPEATS = 24  # of a call with dropout
DROPOUT = 0.3
DEVIATIONS = 6.  # standard deviations that chance explains, in some ten thousand comparisons


class Setting:
    """The graphs, dtypes and numbers of channels from which cases are made."""

    def __init__(self, supports: Supports, graphs: dict[str, BipartiteGraph] | None):
        self.supports, self.is_fixed = supports, graphs is not None
        self.graphs = GRAPHS if graphs is None else graphs
        declared = [dtype for dtype in DTYPES if dtype in supports.dtypes]
        full = [dtype for dtype in declared if dtype.itemsize >= 4]
        self.dtype = torch.float32 if torch.float32 in full else (full or declared)[0]
        self.channels = 4 if supports.channels is None else min(supports.channels)

    def draw(self, name: str, graph: str | BipartiteGraph, dtype: torch.dtype | None = None,
             **options: Any) -> Case:
        options = {'channels': self.channels, 'is_fixed': self.is_fixed, **options}
        return draw(name, self.graph(graph), dtype or self.dtype, **options)

    def draw_each(self, graphs: Iterable[str], **options: Any) -> Iterator[Case]:
        return (self.draw(graph, graph, **options) for graph in graphs)

    def graph(self, graph: str | BipartiteGraph) -> BipartiteGraph:
        # a function that works only on given graphs gets the first of these instead
        if self.is_fixed and not (isinstance(graph, str) and graph in self.graphs):
            return next(iter(self.graphs.values()))
        return self.graphs[graph] if isinstance(graph, str) else graph


class Check(NamedTuple):
    name: str
    cases: Callable[[Setting], Iterator[Case]]
    test: Callable[[Kernel, Case], float]
    needs: str = ''  # a property or capability; without it the check is not made


CHECKS: list[Check] = []


def check(name: str, test: Callable[[Kernel, Case], float] | None = None,
          needs: str = '') -> Callable:
    def add(cases: Callable[[Setting], Iterator[Case]]) -> Callable[[Setting], Iterator[Case]]:
        CHECKS.append(Check(name, cases, test or agrees, needs))
        return cases
    return add


# What is required ####################################################################


def agrees(kernel: Kernel, case: Case) -> float:
    return compare(kernel.run(case), define(case), tolerance(case))


def agrees_by_any_threads(kernel: Kernel, case: Case) -> float:
    errors = []
    is_forked = multiprocessing.parent_process() is not None  # a fork has one thread
    for number in (1,) if is_forked else (1, os.cpu_count() or 1):
        with num_threads(number):
            errors.append(agrees(kernel, case))
    return max(errors)


@contextmanager
def num_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def repeats_itself(kernel: Kernel, case: Case) -> float:
    first = kernel.run(case)
    for _ in range(3):
        for name, again in kernel.run(case).items():
            if not torch.equal(first[name].nan_to_num(), again.nan_to_num()):
                raise Mismatch('varies', f"the same call gives other bits of '{name}'", name,
                               again, first[name])
    return 0.


def agrees_alone(kernel: Kernel, case: Case) -> float:
    """Compare gradients in calls where only one input needs one."""
    return max(agrees(kernel, replace(case, wants=(name,))) for name in case.inputs)


def agrees_compiled(kernel: Kernel, case: Case) -> float:
    torch.compiler.reset()
    traced = Kernel(torch.compile(kernel.function, fullgraph=True, backend='aot_eager'),
                    kernel.supports, kernel.form_name, kernel.layout_name, kernel.device)
    try:
        return agrees(traced, case)
    finally:
        torch.compiler.reset()


def agrees_twice_differentiated(kernel: Kernel, case: Case) -> float:
    """Compare the gradients of the sum of squares of all first gradients."""
    leaves = kernel.arguments(case)
    out = kernel.outward('out', kernel.call(case, leaves), case)
    results = _second_derivatives(case, out, leaves)
    results = {name: kernel.outward(name, x, case).cpu() for name, x in results.items()}
    exact = {name: x.detach().double().requires_grad_() for name, x in case.inputs.items()}
    expected = _second_derivatives(case, attend(case, exact)[0], exact)
    # Sums of sums of products: a bound by the largest, with the square root of what single
    # precision of their terms could lose.
    unit = torch.finfo(case.dtype).eps
    allowed = {name: torch.full_like(x, unit * 1e4 * (1 + float(x.abs().max()) if x.numel() else 1))
               for name, x in expected.items()}
    return compare(results, expected, allowed)


def _second_derivatives(case: Case, out: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    cotangent = case.tensors['cotangent'].to(out)
    grads = raising(torch.autograd.grad, out, list(leaves.values()), cotangent, create_graph=True)
    squares = sum(grad.square().sum() for grad in grads)
    if not squares.requires_grad:
        raise Mismatch('raised', 'the gradient has no derivative')
    second = raising(torch.autograd.grad, squares, list(leaves.values()))
    return {name: x.detach() for name, x in zip(leaves, second)}


def drops_by_one_mask(kernel: Kernel, case: Case) -> float:
    """Check that the forward and the backward pass drop the same weights."""
    torch.manual_seed(0)
    results = kernel.run(case)
    # values are unit vectors, so the output shows which weights are dropped
    keep = _mask(results['out'], case)
    return compare(results, define(case, keep), tolerance(case, keep))


def _mask(out: Tensor, case: Case) -> Tensor:
    # [num_edges, heads], 0 for dropped edges, else 1 / (1 - dropout_p)
    weight = attend(case, {name: x.double() for name, x in case.inputs.items()})[1]
    dropped = out.double()[case.graph.query, :, case.graph.key.long()]
    return (dropped > weight / 2).double() / (1 - case.dropout_p)


def drops_with_its_probability(kernel: Kernel, case: Case) -> float:
    """Check rates of dropout, and that neighbours and calls are independent."""
    torch.manual_seed(0)
    quiet = replace(case, wants=())
    kept = torch.stack([_mask(kernel.run(quiet)['out'], case) > 0 for _ in range(REPEATS)])
    kept, keep = kept.double(), 1 - case.dropout_p
    if all(torch.equal(kept[0], again) for again in kept[1:]):
        raise Mismatch('values', 'every call drops the same weights', 'out')
    spread = (keep * (1 - keep)) ** 0.5
    errors = {'the rate at which weights are kept': (kept.mean() - keep) / spread
              * kept.numel() ** 0.5,
              'the rate at which one weight is kept': (kept.mean(0) - keep) / spread
              * REPEATS ** 0.5}
    centred = (kept - keep) / spread
    for what, one, other in (('calls', centred[1:], centred[:-1]),
                             ('edges', centred[:, 1:], centred[:, :-1]),
                             ('heads', centred[..., 1:], centred[..., :-1])):
        errors[f'the correlation of neighbouring {what}'] = (one * other).mean(
            ) * one.numel() ** 0.5
    for what, error in errors.items():
        if (worst := float(error.abs().max())) > DEVIATIONS:
            raise Mismatch('values', f'{what} is off by {worst:.1f} standard deviations', 'out',
                           error=worst / DEVIATIONS)
    return max(float(error.abs().max()) for error in errors.values()) / DEVIATIONS


# The table ###########################################################################


@check('graphs')
def every_graph(on: Setting) -> Iterator[Case]:
    return on.draw_each(name for name in on.graphs if not _has_nothing(on.graphs[name]))


@check('nothing to attend to')
def nothing_to_attend_to(on: Setting) -> Iterator[Case]:
    for name in filter(lambda name: _has_nothing(on.graphs[name]), on.graphs):
        yield on.draw(name, name)
        for term in TERMS:
            yield on.draw(f'{name}, {term}', name, terms=(term,))
        yield on.draw(f'{name}, softcap', name, softcap=SOFTCAP)
        yield on.draw(f'{name}, bfloat16', name, torch.bfloat16)
    case = on.draw('bias of -inf for all keys of a query', 'square', terms=('edge_bias',))
    bias = case.tensors['edge_bias'].clone()
    bias[case.graph.query == 3] = -torch.inf
    yield case.changed(edge_bias=bias)
    yield _without_first_sink(on.draw('idle nodes, a sink of -inf', 'idle nodes', terms=('sink',)))


def _has_nothing(graph: BipartiteGraph) -> bool:
    return graph.num_queries == 0 or bool((graph.in_degree() == 0).any())


@check('double precision')
def double_precision(on: Setting) -> Iterator[Case]:
    yield from on.draw_each((name for name in on.graphs if not _has_nothing(on.graphs[name])),
                            dtype=torch.float64)
    for channels in WIDTHS:
        yield on.draw(f'{channels} channels', 'square', torch.float64, channels=channels)
    for term in TERMS:
        yield on.draw(term, 'square', torch.float64, terms=(term,))
    yield on.draw('softcap', 'square', torch.float64, softcap=SOFTCAP)


@check('half precision')
def half_precision(on: Setting) -> Iterator[Case]:
    for dtype in (torch.bfloat16, torch.float16):
        for name in ('square', 'hub', 'rows of all lengths', 'ragged batch'):
            yield on.draw(f'{name}, {_short(dtype)}', name, dtype)
        # The same rounding error in each step does not cancel.
        case = on.draw(f'a sum of 300 equal terms, {_short(dtype)}', 'long row', dtype)
        yield case.changed(query=torch.zeros_like(case.tensors['query']),
                           value=torch.ones_like(case.tensors['value']))
        case = on.draw(f'gradients that cancel, {_short(dtype)}', 'hub', dtype)
        yield case.changed(value=case.tensors['value'] / 64 + 8)


@check('bias')
def bias(on: Setting) -> Iterator[Case]:
    yield from on.draw_each(SOME_GRAPHS, terms=('edge_bias',))
    case = on.draw('-inf for some keys', 'all pairs', terms=('edge_bias',))
    some = case.tensors['edge_bias'].clone()
    some[1::3] = -torch.inf
    yield case.changed(edge_bias=some)


@check('gate')
def gate(on: Setting) -> Iterator[Case]:
    yield from on.draw_each(SOME_GRAPHS, terms=('edge_gate',))
    yield on.draw('with bias', 'square', terms=('edge_bias', 'edge_gate'))
    case = on.draw('gates of 0', 'square', terms=('edge_gate',))
    yield case.changed(edge_gate=case.tensors['edge_gate'].relu())


@check('softcap')
def softcap(on: Setting) -> Iterator[Case]:
    yield from on.draw_each(SOME_GRAPHS, softcap=SOFTCAP)
    yield on.draw('with scale', 'square', softcap=SOFTCAP, scale=2.)
    for term in TERMS:
        yield on.draw(f'with {term}', 'square', softcap=SOFTCAP, terms=(term,))
    for size in (1e-6, 10., 1e3, 1e5):
        case = on.draw(f'of logits about {size:g}', 'square', softcap=30.)
        yield case.changed(query=_in_range(case.tensors['query'].double() * size, on.dtype))
    for dtype in (torch.bfloat16, torch.float16):
        yield on.draw(_short(dtype), 'rows of all lengths', dtype, softcap=SOFTCAP)


@check('sink')
def sink(on: Setting) -> Iterator[Case]:
    yield from on.draw_each(SOME_GRAPHS, terms=('sink',))
    yield on.draw('grouped queries', 'square', heads=4, kv_heads=2, terms=('sink',))
    yield on.draw('with bias', 'square', terms=('edge_bias', 'sink'))
    for size in (-1e30, -1e4, -30., 30., 1e4, 1e30):
        case = on.draw(f'{size:g}', 'square', terms=('sink',))
        large = torch.full_like(case.tensors['sink'], size, dtype=torch.float64)
        yield case.changed(sink=_in_range(large, on.dtype))
    case = on.draw('of large logits', 'square', terms=('sink',))
    yield case.changed(**{name: _in_range(case.tensors[name].double() * 100, on.dtype)
                          for name in ('query', 'sink')})
    yield _without_first_sink(on.draw('-inf for a head', 'square', terms=('sink',)))
    for dtype in (torch.bfloat16, torch.float16):
        yield on.draw(_short(dtype), 'rows of all lengths', dtype, terms=('sink',))


def _without_first_sink(case: Case) -> Case:
    sink = case.tensors['sink'].clone()
    sink[0] = -torch.inf
    return case.changed(sink=sink)


@check('scale')
def scale(on: Setting) -> Iterator[Case]:
    for factor in (0.3, 2., -1.):
        yield on.draw(f'scale {factor}', 'square', scale=factor)


@check('grouped queries')
def grouped_queries(on: Setting) -> Iterator[Case]:
    for heads, kv_heads in ((4, 2), (3, 1), (6, 3)):
        for graph in ('square', 'rows of all lengths'):
            yield on.draw(f'{heads} heads over {kv_heads}, {graph}', graph, heads=heads,
                          kv_heads=kv_heads)


@check('one head, many heads')
def numbers_of_heads(on: Setting) -> Iterator[Case]:
    for heads in (1, 3, 8, 17):
        yield on.draw(f'{heads} heads', 'square', heads=heads)


@check('widths of heads')
def widths(on: Setting) -> Iterator[Case]:
    for channels in sorted({*WIDTHS, *(on.supports.channels or ())}):
        yield on.draw(f'{channels} channels', 'square', channels=channels)
        yield on.draw(f'{channels} channels, more keys', 'more keys',
                      channels=channels)
    for value_channels in (1, 5, 2 * on.channels, 130):
        yield on.draw(f'{value_channels} channels of values', 'square',
                      value_channels=value_channels)


@check('sizes of logits')
def logits(on: Setting) -> Iterator[Case]:
    for size in (1e-30, 1e-6, 10., 100., 1e3, 1e5):
        for graph in ('square', 'rows of all lengths'):
            case = on.draw(f'about {size:g}, {graph}', graph)
            yield case.changed(query=_in_range(case.tensors['query'].double() * size, on.dtype))


@check('logits of one sign')
def shifted_logits(on: Setting) -> Iterator[Case]:
    for shift in (1e2, -1e2, 1e4, -1e4):
        case = on.draw(f'near {shift:g}', 'square')
        query, key = (case.tensors[name].clone() for name in ('query', 'key'))
        query[..., 0], key[..., 0] = abs(shift) ** 0.5, abs(shift) ** 0.5 * (1 if shift > 0 else -1)
        yield case.changed(query=query, key=key)


@check('large exact logits', needs='exact_logits')
def exact_logits(on: Setting) -> Iterator[Case]:
    for size in (2.**10, 2.**13, 2.**17):
        case = on.draw(f'multiples of {size:g}', 'square', channels=4, is_exact=True)
        key = torch.ones_like(case.tensors['key'])  # many logits of a query are the highest
        key[::3] = -1.
        query = _in_range(case.tensors['query'].sign().double() * size, on.dtype)
        yield case.changed(query=query, key=key)


@check('a bias that all edges share', needs='exact_logits')
def shared_bias(on: Setting) -> Iterator[Case]:
    lowest = torch.finfo(on.dtype).min
    for shift in (1e4, -1e4, min(2.**20, -lowest), max(-2.**30, lowest), lowest):
        case = on.draw(f'{shift:g}', 'square', terms=('edge_bias',), is_exact=True)
        shared = torch.full_like(case.tensors['edge_bias'], shift)
        yield case.changed(query=case.tensors['query'] * 0, edge_bias=shared)
    case = on.draw('and sinks', 'square', terms=('edge_bias', 'sink'), is_exact=True)
    yield case.changed(query=case.tensors['query'] * 0, **{
        name: torch.full_like(case.tensors[name], 1e4) for name in ('edge_bias', 'sink')})


@check('NaN without an edge', needs='isolates_nan')
def outside(on: Setting) -> Iterator[Case]:
    for poison in (torch.nan, torch.inf, -torch.inf):
        for name, graph in (('no edges at all', idle_nodes()), ('one edge', _rarely_attended())):
            case = on.draw(f'{poison} in keys and values with {name}', graph)
            lonely = case.graph.out_degree() <= int(name == 'one edge')
            key, value = case.tensors['key'].clone(), case.tensors['value'].clone()
            value[lonely] = poison
            if name != 'one edge':
                key[lonely] = poison
            yield case.changed(key=key, value=value)


def _rarely_attended() -> BipartiteGraph:
    mask = random_graph(6, 6, 0.6).to_mask()
    mask[:, 5], mask[5, 0] = False, True
    mask[2, 5] = True
    return BipartiteGraph.from_mask(mask)


@check('strides')
def strides(on: Setting) -> Iterator[Case]:
    for memory in ('transposed', 'sliced', 'expanded'):
        for graph in ('square', 'rows of all lengths'):
            case = on.draw(f'{memory}, {graph}', graph, memory=memory)
            if memory == 'expanded':
                case = case.changed(**{name: x[:, :1].repeat(1, x.size(1), 1)
                                       for name, x in case.tensors.items()})
            yield case
        for term in TERMS:
            yield on.draw(f'{memory}, with {term}', 'square', memory=memory, terms=(term,))


@check('repeated edges')
def repeated(on: Setting) -> Iterator[Case]:
    return on.draw_each(('square', 'ragged batch', 'more keys', 'rows of all lengths'),
                        repeats=True)


@check('gradient of one input alone', agrees_alone, needs='gradients')
def one_input(on: Setting) -> Iterator[Case]:
    yield on.draw('query, key, value', 'square')
    for term in TERMS:
        yield on.draw(f'with {term}', 'square', terms=(term,))
    yield on.draw('with softcap', 'square', softcap=SOFTCAP)


@check('determinism', repeats_itself, needs='deterministic')
def determinism(on: Setting) -> Iterator[Case]:
    yield from on.draw_each(('hub', 'rows of all lengths', 'long column'))
    yield on.draw('with sink', 'rows of all lengths', terms=('sink',))


@check('threads', agrees_by_any_threads)
def threads(on: Setting) -> Iterator[Case]:
    yield on.draw('many edges', 'rows of all lengths' if on.is_fixed else across_tiles(400))


@check('second derivatives', agrees_twice_differentiated, needs='gradients')
def second_derivatives(on: Setting) -> Iterator[Case]:
    yield from on.draw_each(('all pairs', 'square'), order=2)
    yield on.draw('with sink', 'square', terms=('sink',), order=2)
    yield on.draw('with softcap', 'square', softcap=SOFTCAP, order=2)


def _drop(on: Setting, name: str, num_nodes: int, **options: Any) -> Case:
    graph = on.graph(random_graph(num_nodes, num_nodes, 0.6))
    case = on.draw(name, graph, channels=graph.num_keys, dropout_p=DROPOUT, heads=4, **options)
    # a unit vector for each key, so channel j of the output is the weight of key j
    units = torch.eye(graph.num_keys, dtype=case.dtype).unsqueeze(1).repeat(1, 4, 1)
    return case.changed(value=units, query=case.tensors['query'] / 4)


@check('dropout, gradients', drops_by_one_mask, needs='gradients')
def dropout_gradients(on: Setting) -> Iterator[Case]:
    for size in (8, 32):
        yield _drop(on, f'{size} nodes', size)
    yield _drop(on, 'with sink', 8, terms=('sink',))
    yield _drop(on, 'with softcap', 8, softcap=SOFTCAP)


@check('dropout, frequencies', drops_with_its_probability)
def dropout_frequencies(on: Setting) -> Iterator[Case]:
    yield _drop(on, '16 nodes', 16)


@check('torch.compile', agrees_compiled, needs='compiles')
def compiled(on: Setting) -> Iterator[Case]:
    yield on.draw('square', 'square')


def _in_range(x: Tensor, dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    return x.clamp(limits.min, limits.max).to(dtype)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')
