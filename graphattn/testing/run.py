"""Run the checks, here or in a process apart, with a limit on the time of each case, and shrink the
cases that fail."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.call import Kernel, Mismatch, TimeLimit
from graphattn.testing.case import TERMS, Case
from graphattn.testing.checks import Check
from graphattn.testing.report import Finding, Outcome, Status, script

MAX_HANGS = 3  # cases that may run into the time limit before the others are left out
SHRINKING = 3.  # seconds for each check that fails


class Trial(NamedTuple):
    check: Check
    case: Case

    @property
    def names(self) -> tuple[str, str]:
        return self.check.name, self.case.name


class Examiner(NamedTuple):
    kernel: Kernel
    time_limit: float  # in seconds, for each case

    def examine(self, trial: Trial) -> Outcome:
        """Run one trial and return its outcome; the finding of a failure has no code yet."""
        return self.outcome(trial, self.fault(trial))

    def fault(self, trial: Trial) -> Mismatch | float | None:
        """Return the Mismatch of a case, its largest error if all is right, or None if
        unsupported."""
        if not self._applies(trial):
            return None
        try:
            with limited(self.time_limit):
                return trial.check.test(self.kernel, trial.case)
        except Mismatch as mismatch:
            return mismatch
        except TimeLimit:
            return Mismatch('hangs', f'the call took more than {self.time_limit:g} s')

    def shrunk(self, trial: Trial, outcome: Outcome) -> Outcome:
        """Return a failure with the code of the smallest case that fails in the same way."""
        first = self.fault(trial)
        if not isinstance(first, Mismatch) or first.kind == 'hangs':
            return outcome
        lacks = self.kernel.supports.lacks(trial.case)

        def fails(case: Case) -> bool:
            fault = self.fault(Trial(trial.check, case))
            return (isinstance(fault, Mismatch) and fault.kind == first.kind
                    and self.kernel.supports.lacks(case) <= lacks)

        case = smallest(trial.case, fails, SHRINKING)
        last = self.fault(Trial(trial.check, case))
        last = last if isinstance(last, Mismatch) else first
        finding = replace(outcome.finding, message=last.message,
                          code=script(self.kernel, case, last))
        return replace(outcome, finding=finding)

    def _applies(self, trial: Trial) -> bool:
        check, case, kernel = *trial, self.kernel
        return (not (check.needs and not getattr(kernel.supports, check.needs))
                and kernel.accepts(case) and (kernel.form.can_repeat or not case.repeats))

    def outcome(self, trial: Trial, fault: Mismatch | float | None) -> Outcome:
        names = trial.names
        if fault is None:
            return Outcome(*names, Status.NOT_SUPPORTED)
        if not isinstance(fault, Mismatch):
            return Outcome(*names, Status.PASSED, fault)
        lacks = tuple(sorted(self.kernel.supports.lacks(trial.case)))
        if lacks and fault.kind == 'raised':
            return Outcome(*names, Status.REFUSED)
        is_limit = trial.check.name in self.kernel.supports.limits
        return Outcome(*names, Status.LIMIT if is_limit else Status.FAILED, fault.error,
                       Finding(*names, fault.kind, fault.message, undeclared=lacks))


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeLimit if this context takes more than ``seconds``."""
    # no limit in other threads, and without SIGALRM
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, 'SIGALRM'):
        yield
        return
    before = signal.signal(signal.SIGALRM, _raise_time_limit)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _raise_time_limit(*_: object) -> None:
    raise TimeLimit


def run_here(examiner: Examiner, trials: list[Trial]) -> Iterator[Outcome]:
    """Yield the outcome of each trial, computed in this process."""
    return (outcome for outcome, is_final in _steps(examiner, trials, []) if is_final)


def _steps(examiner: Examiner, trials: list[Trial],
           before: list[Outcome]) -> Iterator[tuple[Outcome, bool]]:
    # The first failure of a check is yielded twice: at once, and as final with its smallest case.
    outcomes = list(before)
    for trial in trials:
        found = [each.finding for each in outcomes if each.finding]
        outcome = (Outcome(*trial.names, Status.NOT_RUN)
                   if sum(each.kind == 'hangs' for each in found) >= MAX_HANGS
                   else examiner.examine(trial))
        if outcome.finding and all(each.check != outcome.check for each in found):
            yield outcome, False
            outcome = examiner.shrunk(trial, outcome)
        outcomes.append(outcome)
        yield outcome, True


def run_apart(examiner: Examiner, trials: list[Trial]) -> Iterator[Outcome]:
    """Yield the outcome of each trial, computed in a forked process."""
    # If a trial ends the process, or hangs where no signal reaches it, a new one runs the next.
    outcomes: list[Outcome] = []
    while len(outcomes) < len(trials):
        unfinished = None
        for step in _child(examiner, trials[len(outcomes):], outcomes):
            if isinstance(step, str):
                step = unfinished or _ended(examiner, trials[len(outcomes)], step), True
            unfinished, is_final = step
            if is_final:
                outcomes.append(unfinished)
                yield unfinished
                unfinished = None


def _child(examiner: Examiner, trials: list[Trial],
           before: list[Outcome]) -> Iterator[tuple[Outcome, bool] | str]:
    # the steps, and a str as the last item if the process does not finish
    context = multiprocessing.get_context('fork')
    results, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(examiner, trials, before, sender), daemon=True)
    process.start()
    sender.close()
    try:
        for _ in range(2 * len(trials)):
            if not results.poll(2 * examiner.time_limit + SHRINKING):
                yield 'hangs'
                return
            step = results.recv()
            if step is None:
                return
            yield step
    except EOFError:
        process.join()
        yield f'ended with exit code {process.exitcode}'
    finally:
        process.kill()
        process.join()


def _work(examiner: Examiner, trials: list[Trial], before: list[Outcome],
          sender: Connection) -> None:
    torch.set_num_threads(1)  # the threads of the parent do not exist here
    for step in _steps(examiner, trials, before):
        sender.send(step)
    sender.send(None)


def _ended(examiner: Examiner, trial: Trial, word: str) -> Outcome:
    if word == 'hangs':
        message = f'the call took more than {examiner.time_limit:g} s, and no signal ended it'
        return examiner.outcome(trial, Mismatch('hangs', message))
    mismatch = Mismatch('ends', f'the process of the call {word}')
    outcome = examiner.outcome(trial, mismatch)

    def fails(case: Case) -> bool:
        return word in _child(examiner, [Trial(trial.check, case)], [])

    case = smallest(trial.case, fails, SHRINKING)
    finding = replace(outcome.finding, code=script(examiner.kernel, case, mismatch))
    return replace(outcome, finding=finding)


# Smaller cases that fail in the same way #############################################


def smallest(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """Return a smaller case for which ``fails`` is still true, found within ``seconds``."""
    end = time.monotonic() + seconds

    def in_time(_: Case) -> bool:
        return time.monotonic() < end

    while smaller := next(filter(fails, takewhile(in_time, parts(case))), None):
        case = smaller
    return case


def parts(case: Case) -> Iterator[Case]:
    """Yield cases that lack a part, such as a query or an edge, large parts first."""
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
    """Yield ``0:size`` without runs of indices, first of half of them, then of fewer."""
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
