"""One call of the function under examination, with everything that a call must not do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.case import TERMS, Case
from graphattn.testing.supports import Supports


class Mismatch(Exception):
    """A wrong result of an attention function."""

    # result: 'out', or the input with a wrong gradient; error: in units of the tolerance
    def __init__(self, kind: str, message: str, result: str = '', got: Tensor | None = None,
                 expected: Tensor | None = None, error: float = float('inf')):
        super().__init__(message)
        self.kind, self.message, self.result = kind, message, result
        self.got, self.expected, self.error = got, expected, error


class TimeLimit(BaseException):  # the function under test may catch Exceptions
    """Raised if a call takes longer than the limit."""


def transposed(x: Tensor) -> Tensor:
    """Return a copy of ``x`` that is stored in memory with its dimensions in reverse order."""
    order = tuple(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def sliced(x: Tensor) -> Tensor:
    """Return a copy of ``x`` stored as every second entry of a larger tensor, between NaN."""
    larger = x.new_full([2 * size + 1 for size in x.shape], float('nan'))
    view = larger[tuple(slice(1, None, 2) for _ in x.shape)]
    return view.copy_(x)


def expanded(x: Tensor) -> Tensor:
    """Return ``x`` with stride 0 over heads, if all heads have equal values."""
    first = x.narrow(1, 0, min(1, x.size(1))) if x.dim() > 1 else x
    return first.expand_as(x) if torch.equal(first.expand_as(x), x) else x


MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    'contiguous': Tensor.contiguous, 'transposed': transposed, 'sliced': sliced,
    'expanded': expanded}

# From [nodes, heads, channels] to the layout of a function, and back.
LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    'nhc': (lambda x: x, lambda x: x),
    'bhnc': (lambda x: x.transpose(0, 1).unsqueeze(0), lambda x: x.squeeze(0).transpose(0, 1)),
    'bnhc': (lambda x: x.unsqueeze(0), lambda x: x.squeeze(0)),
}


class Form(NamedTuple):
    """A form in which attention functions take edges and values on edges."""

    # functions of a graph, and of whether edges are repeated and shuffled; positions: the shape of
    # a tensor with a value for each edge, and the index of each edge in it
    edges: Callable[[BipartiteGraph, bool], Any]
    positions: Callable[[BipartiteGraph], tuple[tuple[int, ...], tuple[Tensor, ...]]]
    can_repeat: bool = False


def on_edges(graph: BipartiteGraph) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    return (graph.num_edges,), (torch.arange(graph.num_edges),)


def on_pairs(graph: BipartiteGraph) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    return (graph.num_queries, graph.num_keys), (graph.query, graph.key.long())


def on_slots(graph: BipartiteGraph) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    degree = graph.in_degree()
    slot = torch.arange(graph.num_edges) - graph.indptr[graph.query]
    return (graph.num_queries, max(degree.tolist(), default=0)), (graph.query, slot)


def indices(graph: BipartiteGraph, repeats: bool) -> Tensor:
    """Return the keys of each query, int64 ``[num_queries, K]``, padded by -1."""
    shape, at = on_slots(graph)
    table = torch.full(shape, -1).index_put(at, graph.key.long())
    if not repeats or table.size(1) == 0:
        return table
    # repeats the first key of each query, in reverse order
    return torch.cat([table, torch.full_like(table[:, :1], -1), table[:, :1]], dim=1).flip(1)


def edge_index(graph: BipartiteGraph, repeats: bool) -> Tensor:
    """Return the edges, int64 ``[2, num_edges]`` with keys in row 0."""
    edges = graph.edge_index.as_tensor()
    # repeats every third edge, in reverse order
    return torch.cat([edges, edges[:, ::3]], dim=1).flip(1) if repeats else edges


FORMS = {
    'graph': Form(lambda graph, repeats: graph, on_edges),
    'mask': Form(lambda graph, repeats: graph.to_mask(), on_pairs),
    'indices': Form(indices, on_slots, can_repeat=True),
    'block_mask': Form(lambda graph, repeats: graph.to_block_mask(), on_pairs),
    'edge_index': Form(edge_index, on_edges, can_repeat=True),
}


class Kernel:
    """An attention function under test, which is called with the arguments of cases."""

    def __init__(self, function: Callable[..., Tensor], supports: Supports, form: str, layout: str,
                 device: torch.device):
        self.function, self.supports, self.device = function, supports, device
        self.form: Form = FORMS[form]
        self.form_name, self.layout_name = form, layout
        self._to, self._back = LAYOUTS[layout]
        self._accepted = _keywords(function)

    def accepts(self, case: Case) -> bool:
        return self._accepted is None or set(self.terms(case)) <= self._accepted

    def terms(self, case: Case) -> dict[str, Any]:
        # bias and gate [num_edges, heads], not yet in the form of the function
        tensors = {name: case.tensors[name] for name in TERMS if name in case.tensors}
        scalars = {'scale': case.scale, 'softcap': case.softcap, 'dropout_p': case.dropout_p}
        return {**tensors, **{name: x for name, x in scalars.items() if x}}

    def arguments(self, case: Case) -> dict[str, Tensor]:
        # new leaves, in form, layout and strides
        lay_out = MEMORY[case.memory]
        copies = {name: self.inward(name, x, case).clone(memory_format=torch.contiguous_format)
                  for name, x in case.inputs.items()}
        return {name: lay_out(x.to(self.device)).requires_grad_(
            self.supports.gradients and name in case.wants) for name, x in copies.items()}

    def inward(self, name: str, x: Tensor, case: Case) -> Tensor:
        """Convert a tensor of a case to the form and layout of the function under test."""
        if name == 'sink':
            return x
        if not name.startswith('edge_'):
            return self._to(x)
        shape, at = self.form.positions(case.graph)
        x = x.new_zeros(*shape, case.heads).index_put(at, x)
        return x.movedim(-1, 0).unsqueeze(0) if self.layout_name == 'bhnc' else x

    def outward(self, name: str, x: Tensor, case: Case) -> Tensor:
        """Convert an output or gradient back, the reverse of :meth:`inward`."""
        if name == 'sink':
            return x
        if not name.startswith('edge_'):
            return self._back(x)
        x = x.squeeze(0).movedim(0, -1) if self.layout_name == 'bhnc' else x
        return x[self.form.positions(case.graph)[1]]

    def edges(self, case: Case) -> Any:
        edges = self.form.edges(case.graph, case.repeats)
        return edges.to(self.device) if hasattr(edges, 'to') else edges

    def call(self, case: Case, leaves: dict[str, Tensor]) -> Tensor:
        """Call the function, and raise a Mismatch if it fails or if its output is of the wrong
        kind."""
        nodes = [leaves[name] for name in ('query', 'key', 'value')]
        terms = {name: leaves.get(name, x) for name, x in self.terms(case).items()}
        out = raising(self.function, *nodes, self.edges(case), **terms)
        expected = self._to(case.tensors['cotangent']).shape
        if not isinstance(out, Tensor):
            raise Mismatch('type', f'the output is {type(out).__name__}, not a Tensor')
        for kind, came, right in (('shape', tuple(out.shape), tuple(expected)),
                                  ('dtype', out.dtype, case.dtype),
                                  ('device', out.device.type, self.device.type)):
            if came != right:
                raise Mismatch(kind, f'the {kind} of the output is {came}, not {right}')
        return out

    def run(self, case: Case) -> dict[str, Tensor]:
        """Return ``'out'`` and the gradients on the CPU; raise a Mismatch if an input changes."""
        leaves = self.arguments(case)
        before = {name: x.detach().clone() for name, x in leaves.items()}
        out = self.call(case, leaves)
        check_unchanged(leaves, before, 'the call')
        results = {'out': self.outward('out', out.detach(), case).cpu(),
                   **self.gradients(case, out, leaves)}
        check_unchanged(leaves, before, 'the backward pass')
        return results

    def gradients(self, case: Case, out: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        wanted = {name: x for name, x in leaves.items() if x.requires_grad}
        if not wanted:
            return {}
        if not out.requires_grad:
            raise Mismatch('gradient', 'the output has no gradient')
        cotangent = MEMORY[case.memory](self._to(case.tensors['cotangent']).contiguous())
        grads = raising(torch.autograd.grad, out, list(wanted.values()),
                        cotangent.to(self.device), allow_unused=True)
        for (name, x), grad in zip(wanted.items(), grads):
            if grad is None and x.numel() > 0:
                raise Mismatch('gradient', f"'{name}' receives no gradient", name)
        return {name: self.outward(name, x.new_zeros(x.shape) if grad is None else grad,
                                   case).cpu()
                for (name, x), grad in zip(wanted.items(), grads)}


def check_unchanged(now: dict[str, Tensor], before: dict[str, Tensor], what: str) -> None:
    for name, x in now.items():
        if not torch.equal(x.detach().nan_to_num(), before[name].nan_to_num()):
            raise Mismatch('writes', f"{what} changed the argument '{name}'", name)


def raising(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of ``function``, or raise a Mismatch of the kind ``'raised'``."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        first_line = str(error).strip().split('\n')[0]
        raise Mismatch('raised', f'{type(error).__name__}: {first_line}') from error


def _keywords(function: Callable[..., Any]) -> set[str] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # any name
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return {each.name for each in parameters}


def compare(results: dict[str, Tensor], expected: dict[str, Tensor],
            tolerance: dict[str, Tensor]) -> float:
    """Return the largest error in units of its tolerance, or raise a Mismatch above 1."""
    worst = 0.
    for name, got in results.items():
        ratio = _ratio(got.detach().double(), expected[name], tolerance[name], name)
        if ratio > 1:
            what = 'the output' if name == 'out' else f"the gradient of '{name}'"
            raise Mismatch('values', f'{what} is off by {ratio:.3g} times what rounding explains',
                           name, got, expected[name], ratio)
        worst = max(worst, ratio)
    return worst


def _ratio(got: Tensor, expected: Tensor, tolerance: Tensor, name: str) -> float:
    if got.numel() == 0:
        return 0.
    # Gradients of a query that attends to NaN are arbitrary, its output is not finite.
    is_right = ~got.isfinite() if name == 'out' else torch.ones_like(got, dtype=torch.bool)
    is_right = torch.where(expected.isfinite(), got == expected, is_right)
    ratio = ((got - expected).abs() / tolerance).masked_fill(is_right, 0.)
    return float(ratio.masked_fill(ratio.isnan(), float('inf')).max())
