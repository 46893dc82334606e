"""One call of the function under examination, with everything that a call must not do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphattn.testing.case import TERMS, Case
from graphattn.testing.forms import FORMS, Form
from graphattn.testing.supports import Supports


class Mismatch(Exception):
    """A wrong result of an attention function.

    Args:
        kind (str): What is wrong, as in :class:`graphattn.testing.report.Finding`.
        message (str): The fault in words.
        result (str): The wrong result: ``'out'``, or the input with a wrong gradient.
        got (Tensor, optional): The value of the result.
        expected (Tensor, optional): The right value.
        error (float): Largest error in units of the tolerance.
    """

    def __init__(self, kind: str, message: str, result: str = '', got: Tensor | None = None,
                 expected: Tensor | None = None, error: float = float('inf')):
        super().__init__(message)
        self.kind, self.message, self.result = kind, message, result
        self.got, self.expected, self.error = got, expected, error


class TimeLimit(BaseException):
    """Raised if a call takes longer than the limit. It is not an Exception, because the function
    under test may catch Exceptions."""


def transposed(x: Tensor) -> Tensor:
    """Return a copy of ``x`` that is stored in memory with its dimensions in reverse order."""
    order = tuple(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def sliced(x: Tensor) -> Tensor:
    """Return a copy of ``x`` that is stored as every second entry of a larger tensor, between
    entries of NaN."""
    larger = x.new_full([2 * size + 1 for size in x.shape], float('nan'))
    view = larger[tuple(slice(1, None, 2) for _ in x.shape)]
    return view.copy_(x)


def expanded(x: Tensor) -> Tensor:
    """Return ``x`` with stride 0 over heads, if all heads have equal values; otherwise return ``x``
    itself."""
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


class Kernel:
    """An attention function under test, which is called with the arguments of cases.

    Args:
        function (Callable): The function.
        supports (Supports): The declaration of what the function supports.
        form (str): Form in which the function takes edges, a key of
            :data:`graphattn.testing.forms.FORMS`.
        layout (str): Layout of query, key, value and output, a key of :data:`LAYOUTS`.
        device (torch.device): Device on which the function runs.
    """

    def __init__(self, function: Callable[..., Tensor], supports: Supports, form: str, layout: str,
                 device: torch.device):
        self.function, self.supports, self.device = function, supports, device
        self.form: Form = FORMS[form]
        self.form_name, self.layout_name = form, layout
        self._to, self._back = LAYOUTS[layout]
        self._accepted = _keywords(function)

    def accepts(self, case: Case) -> bool:
        """Return whether the function under test has a parameter for each optional input of the
        test case ``case``, such as a bias or a softcap."""
        return self._accepted is None or set(self.terms(case)) <= self._accepted

    def terms(self, case: Case) -> dict[str, Any]:
        """Return the optional inputs of the test case ``case``, such as a bias or a softcap, as
        keyword arguments. Bias and gate are ``[num_edges, heads]``, not yet in the form that the
        function takes."""
        tensors = {name: case.tensors[name] for name in TERMS if name in case.tensors}
        scalars = {'scale': case.scale, 'softcap': case.softcap, 'dropout_p': case.dropout_p}
        return {**tensors, **{name: x for name, x in scalars.items() if x}}

    def arguments(self, case: Case) -> dict[str, Tensor]:
        """Return the input tensors of the test case ``case`` in the form, layout and memory strides
        in which the function under test gets them. They are new leaves of the autograd graph."""
        lay_out = MEMORY[case.memory]
        copies = {name: self.inward(name, x, case).clone(memory_format=torch.contiguous_format)
                  for name, x in case.inputs.items()}
        return {name: lay_out(x.to(self.device)).requires_grad_(
            self.supports.gradients and name in case.wants) for name, x in copies.items()}

    def inward(self, name: str, x: Tensor, case: Case) -> Tensor:
        """Convert ``x``, the tensor called ``name`` in the test case ``case``, to the form and
        layout that the function under test expects."""
        if name == 'sink':
            return x
        if not name.startswith('edge_'):
            return self._to(x)
        shape, at = self.form.positions(case.graph)
        x = x.new_zeros(*shape, case.heads).index_put(at, x)
        return x.movedim(-1, 0).unsqueeze(0) if self.layout_name == 'bhnc' else x

    def outward(self, name: str, x: Tensor, case: Case) -> Tensor:
        """Convert ``x`` to the form that the test case ``case`` uses, the reverse of
        :meth:`inward`. ``x`` is the output of the function under test or the gradient of its input
        ``name``."""
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
        """Call the function under test with the inputs ``leaves``, and return its output in its own
        layout. Raise a Mismatch if the function fails, or if the type, shape, dtype or device of
        the output is wrong. ``leaves`` is the result of :meth:`arguments`."""
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
        """Return the output and the gradients of the function under test for the test case
        ``case``: a dict of tensors on the CPU by the names ``'out'`` and those of inputs. Raise a
        Mismatch if the call or its backward pass changes an input."""
        leaves = self.arguments(case)
        before = {name: x.detach().clone() for name, x in leaves.items()}
        out = self.call(case, leaves)
        check_unchanged(leaves, before, 'the call')
        results = {'out': self.outward('out', out.detach(), case).cpu(),
                   **self.gradients(case, out, leaves)}
        check_unchanged(leaves, before, 'the backward pass')
        return results

    def gradients(self, case: Case, out: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients of all inputs that need one, a dict by the names of inputs. ``out``
        is the output for ``leaves``, which is the result of :meth:`arguments`."""
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
    """Return the result of ``function``. If it raises an exception, raise a Mismatch of the kind
    ``'raised'`` instead."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        first_line = str(error).strip().split('\n')[0]
        raise Mismatch('raised', f'{type(error).__name__}: {first_line}') from error


def _keywords(function: Callable[..., Any]) -> set[str] | None:
    """Return the names of the parameters of ``function``, or None if ``function`` accepts any
    name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return {each.name for each in parameters}


def compare(results: dict[str, Tensor], expected: dict[str, Tensor],
            tolerance: dict[str, Tensor]) -> float:
    """Return the largest error of the results, divided by its tolerance. ``expected`` and
    ``tolerance`` have the right value and the largest allowed error of each entry.

    Raises:
        Mismatch: An error is larger than its tolerance.
    """
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
