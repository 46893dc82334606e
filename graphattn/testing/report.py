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
        check (str): The check that found it.
        case (str): The case of the check.
        kind (str): ``'values'``, ``'raised'``, ``'hangs'``, ``'ends'`` (its process), ``'writes'``
            (into an argument), ``'varies'``, ``'gradient'`` (there is none), or ``'type'``,
            ``'shape'``, ``'dtype'`` or ``'device'`` of the output.
        message (str): What came, and what is right.
        code (str): The smallest case that fails, as a script.
        undeclared (tuple[str]): What the case needs and the declaration lacks. The function should
            have raised an error.
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
    """The status of one case of a check, and the largest error of the case divided by its
    tolerance."""

    check: str
    case: str
    status: Status
    error: float = 0.
    finding: Finding | None = None


@dataclass(frozen=True)
class Report:
    """The outcomes of all cases of all checks of an attention function. As text, it is a table with
    a row for each check."""

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
        """Return the first failure of each check that is declared as a limit."""
        failed = {each.check: each.finding for each in reversed(self.outcomes)
                  if each.status == Status.LIMIT}
        return [failed[check] for check in self.checks() if check in failed]

    @property
    def is_right(self) -> bool:
        """Return whether no case has failed."""
        return not self.findings

    def check(self) -> Report:
        """Return this report, or raise :class:`WrongAttention` if a case has failed."""
        if not self.is_right:
            raise WrongAttention(self)
        return self

    def checks(self) -> dict[str, list[Outcome]]:
        """Return a dict from the name of each check to its list of outcomes."""
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
