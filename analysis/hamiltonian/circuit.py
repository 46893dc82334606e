"""The third stage of the search: OR-tools' CP-SAT solver, which can prove either answer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import scipy.sparse as sp
from tqdm import tqdm


def solve(links: sp.csr_array, deadline: float, seed: int
          ) -> tuple[bool | None, str | None, list[int] | None]:
    """Search for a Hamiltonian path by OR-tools' CP-SAT solver.

    A path becomes a circuit by an additional token that is joined to all others in both directions.
    No step starts after the deadline.

    Args:
        links: Sparse array ``[n, n]`` whose row j marks the tokens that may follow token j in a
            path.
        deadline: Time of :func:`time.monotonic` at which the search ends.
        seed: Seed of the solver.

    Returns:
        Whether a path exists, the reason if it does not or if the solver is missing, and the path.
        Each is ``None`` if it is unknown.
    """
    if time.monotonic() >= deadline:
        return None, None, None
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return None, "CP-SAT is missing: pip install 'graphattn[analysis]'", None
    n = links.shape[0]
    edges = links.tocoo()
    model = cp_model.CpModel()
    steps = [*zip(edges.row.tolist(), edges.col.tolist()),
             *((n, token) for token in range(n)), *((token, n) for token in range(n))]
    arcs = []
    for token, follower in steps:
        if time.monotonic() >= deadline:  # building the model takes seconds for a million edges
            return None, None, None
        arcs.append((token, follower, model.new_bool_var('')))
    model.add_circuit(arcs)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # deterministic for a given seed
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_time_in_seconds = max(deadline - time.monotonic(), 0.)
    with _clock(solver.parameters.max_time_in_seconds):
        status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return False, 'CP-SAT proved that there is no path', None
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, None, None
    follower_of = {token: follower for token, follower, is_step in arcs if solver.value(is_step)}
    path = [follower_of[n]]
    while len(path) < n:
        path.append(follower_of[path[-1]])
    return True, None, path


@contextmanager
def _clock(seconds: float) -> Iterator[None]:
    """Return a context that shows a progress bar of the elapsed time, because the solver reports no
    progress."""
    is_over = threading.Event()

    def tick() -> None:
        with tqdm(total=math.ceil(seconds), desc='CP-SAT', unit='s', delay=2, leave=False,
                  disable=None) as bar:
            while not is_over.wait(1):
                bar.update()

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        is_over.set()
        ticking.join()
