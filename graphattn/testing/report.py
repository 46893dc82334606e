"""Results of the examination of a function, and a failing case as a script to paste."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from textwrap import indent

from torch import Tensor

from graphattn.testing.call import Kernel, Mismatch
from graphattn.testing.case import Case


class Status(StrEnum):
    PASSED = 'passed'
    FAILED = 'failed'
    LIMIT = 'limit'  # a failure that the declaration names
    REFUSED = 'refused'
    NOT_SUPPORTED = 'not supported'
    NOT_RUN = 'not run'


@dataclass(frozen=True)
class Finding:
    """A wrong result of an attention function, with code that reproduces it.

    Args:
        check (str): Name of the check that failed.
        case (str): Name of the case of the check.
        kind (str): What is wrong: ``'values'``; the ``'type'``, ``'shape'``, ``'dtype'`` or
            ``'device'`` of the output; ``'raised'``, an exception; ``'hangs'``; ``'ends'``, the
            process ended; ``'writes'``, an argument was changed; ``'varies'``, equal calls differ;
            or ``'gradient'``, there is none.
        message (str): The fault in words.
        code (str): A script with the smallest failing case that was found.
        undeclared (tuple of str): Features that the case needs but the function does not declare.
            The function should have raised an error.
    """

    check: str
    case: str
    kind: str
    message: str
    code: str = ''
    undeclared: tuple[str, ...] = ()

    def __str__(self) -> str:
        hint = (f"\nNeither right nor refused, and not declared: {', '.join(self.undeclared)}."
                if self.undeclared else '')
        code = self.code and f"\nThe smallest case found:\n\n{indent(self.code, '    ')}"
        return f'{self.check} ({self.case}): {self.message}{hint}{code}'


class WrongAttention(AssertionError):
    """Raised if an attention function is wrong. ``findings`` contains the failures, and ``report``
    all outcomes."""

    def __init__(self, report: Report):
        self.report, self.findings = report, report.findings
        super().__init__('\n\n'.join([f'{report}', *map(str, self.findings)]))


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test case. ``error`` is the largest error divided by its tolerance, and
    ``finding`` describes a failure."""

    check: str
    case: str
    status: Status
    error: float = 0.
    finding: Finding | None = None


@dataclass(frozen=True)
class Report:
    """The outcomes of all test cases of an attention function. As text, it is a table with a row
    for each group of cases (check)."""

    name: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """Return the first failure of each check."""
        return self._first_of_each(Status.FAILED)

    @property
    def limits(self) -> list[Finding]:
        """Return the first failure of each check that ``Supports.limits`` declares as known to
        fail."""
        return self._first_of_each(Status.LIMIT)

    def _first_of_each(self, status: Status) -> list[Finding]:
        failed = {each.check: each.finding for each in reversed(self.outcomes)
                  if each.status == status}
        return [failed[check] for check in self.checks() if check in failed]

    @property
    def is_right(self) -> bool:
        """Return whether no case has failed."""
        return not self.findings

    def checks(self) -> dict[str, list[Outcome]]:
        """Return the outcomes of each check, a dict of lists by the name of the check."""
        grouped: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            grouped.setdefault(outcome.check, []).append(outcome)
        return grouped

    def counts(self) -> Counter[Status]:
        return Counter(outcome.status for outcome in self.outcomes)

    def __str__(self) -> str:
        return '\n'.join(_table(self))


def _table(report: Report) -> Iterator[str]:
    found = report.counts()
    columns = [status for status in Status if found[status] or status == Status.PASSED]
    width = max([len('check'), *map(len, report.checks())])
    counted = ', '.join(f'{found[status]} {status}' for status in Status if found[status])
    yield f'{report.name}: {counted}'
    yield ''
    yield '  '.join([f"{'check':<{width}}", *columns, 'worst error / tolerance'])
    for check, outcomes in report.checks().items():
        counts = Counter(outcome.status for outcome in outcomes)
        cells = [f"{counts[status] or '':>{len(status)}}" for status in columns]
        measured = [each.error for each in outcomes if each.status in
                    (Status.PASSED, Status.FAILED, Status.LIMIT)]
        yield '  '.join([f'{check:<{width}}', *cells,
                         f'{max(measured):.2g}' if measured else '']).rstrip()


MAX_VALUES = 4_000  # of all tensors; larger cases are not printed


def script(kernel: Kernel, case: Case, mismatch: Mismatch) -> str:
    """Return Python code that reproduces a failure, or '' if tensors are too large to print."""
    leaves = kernel.arguments(case)
    if sum(x.numel() for x in leaves.values()) > MAX_VALUES:
        return ''
    is_gradient = mismatch.result in leaves and mismatch.kind != 'writes'
    terms = {name: name if name in leaves else repr(x) for name, x in kernel.terms(case).items()}
    arguments = ['query', 'key', 'value', kernel.form_name,
                 *(f'{name}={code}' for name, code in terms.items())]
    body = [f'{kernel.form_name} = {_edges(kernel, case)}',
            *(f'{name} = {_tensor(kernel, case, x)}' for name, x in leaves.items()),
            *(f'{name}.requires_grad_()' for name in leaves if is_gradient),
            *(['torch.manual_seed(0)'] if case.dropout_p else []),
            f"out = {name_of(kernel.function)}({', '.join(arguments)})"]
    if is_gradient:
        cotangent = kernel.inward('cotangent', case.tensors['cotangent'], case)
        body.append(f'out.backward({tensor_code(cotangent)}.to(out))')
    body += _results(mismatch, f'{mismatch.result}.grad' if is_gradient else 'out')
    return '\n'.join([*_imports(kernel.function, '\n'.join(body)), '', *body])


def _edges(kernel: Kernel, case: Case) -> str:
    graph, edges = case.graph, kernel.edges(case)
    if isinstance(edges, Tensor):
        return tensor_code(edges.cpu())
    edges = graph.edge_index.as_tensor().tolist()
    ptrs = ''.join(f', {name}=torch.tensor({ptr.tolist()})' for name, ptr in (
        ('query_ptr', graph.query_ptr), ('key_ptr', graph.key_ptr)) if graph.num_segments != 1)
    return (f'BipartiteGraph(torch.tensor({edges}, dtype=torch.long), {graph.num_queries}, '
            f'{graph.num_keys}{ptrs})' + '.to_block_mask()' * (kernel.form_name == 'block_mask'))


def tensor_code(x: Tensor) -> str:
    kind = str(x.dtype)
    if x.numel() == 0:
        return f'torch.empty({tuple(x.shape)}, dtype={kind})'
    values = repr(x.tolist()).replace('nan', 'math.nan').replace('inf', 'math.inf')
    return f'torch.tensor({values}, dtype={kind})'


def _tensor(kernel: Kernel, case: Case, x: object) -> str:
    code = tensor_code(x.detach().cpu())
    code = code if kernel.device.type == 'cpu' else f"{code}.to('{kernel.device}')"
    return code if case.memory == 'contiguous' else f'MEMORY[{case.memory!r}]({code})'


def _results(mismatch: Mismatch, what: str) -> list[str]:
    if mismatch.got is None or mismatch.expected is None:
        return [f'# {mismatch.message}']
    return [f'print({what})', f'# came:  {mismatch.got.tolist()}',
            f'# right: {mismatch.expected.tolist()}']


def _imports(function: object, body: str) -> list[str]:
    module, name = getattr(function, '__module__', None), getattr(function, '__qualname__', '')
    is_known = module and module != '__main__' and name.isidentifier()
    imports = {f'from {module} import {name}': is_known,
               f'# {name_of(function)} is the function under examination': not is_known,
               'import math': 'math.' in body, 'import torch': True,
               'from graphattn import BipartiteGraph': 'BipartiteGraph' in body,
               'from graphattn.testing.call import MEMORY': 'MEMORY[' in body}
    return sorted(line for line, is_needed in imports.items() if is_needed)


def name_of(function: object) -> str:
    name = getattr(function, '__name__', '')
    return name if name.isidentifier() else 'attention'
