"""Results of the examination of a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


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
        code = f'\nThe smallest case found:\n\n{_indented(self.code)}' if self.code else ''
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
        failed = {each.check: each.finding for each in reversed(self.outcomes)
                  if each.status == Status.FAILED}
        return [failed[check] for check in self.checks() if check in failed]

    @property
    def limits(self) -> list[Finding]:
        """Return the first failure of each check that ``Supports.limits`` declares as known to
        fail."""
        failed = {each.check: each.finding for each in reversed(self.outcomes)
                  if each.status == Status.LIMIT}
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
    columns = [status for status in Status if report.counts()[status] or status == Status.PASSED]
    width = max([len('check'), *map(len, report.checks())])
    yield f'{report.name}: {_counted(report.counts())}'
    yield ''
    yield '  '.join([f"{'check':<{width}}", *columns, 'worst error / tolerance'])
    for check, outcomes in report.checks().items():
        counts = Counter(outcome.status for outcome in outcomes)
        cells = [f"{counts[status] or '':>{len(status)}}" for status in columns]
        measured = [each.error for each in outcomes if each.status in
                    (Status.PASSED, Status.FAILED, Status.LIMIT)]
        yield '  '.join([f'{check:<{width}}', *cells,
                         f'{max(measured):.2g}' if measured else '']).rstrip()


def _counted(counts: Counter[Status]) -> str:
    return ', '.join(f'{counts[status]} {status}' for status in Status if counts[status])


def _indented(code: str) -> str:
    return '\n'.join(f'    {line}'.rstrip() for line in code.splitlines())
