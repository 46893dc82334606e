"""Densities at which dense attention overtakes sparse attention on this machine.

    python -m experiments.benchmarks.crossover
"""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt

from experiments.benchmarks.measure import (
    SPARSE,
    Density,
    benchmark,
    interleave,
    log_log,
    progress,
    run_benchmark,
)
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.functional.choose import DENSE_ABOVE, PAIRS_OF_A_CALL
from graphattn.patterns import Full, RandomKeys

TOKENS = 8192  # of all sequences


@benchmark(nodes=(256,), densities=(0.05, 0.35, 1.), lengths=(20, 320), rounds=3)
def main(
    nodes: list[PositiveInt] = (256, 1024, 4096),
    densities: list[Density] = (0.002, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.),
    lengths: list[PositiveInt] = (20, 40, 80, 160, 320, 640),
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    rounds: PositiveInt = 7,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time each backend, and the choice of 'auto'.

    Args:
        nodes: Numbers of queries and of keys.
        densities: Fractions of the pairs that are edges.
        lengths: Tokens of sequences with complete graphs; every other sequence has one token more,
            so that dense attention cannot batch them.
    """
    rows, calls = [], []
    for n, density in progress(product(nodes, densities), 'crossover'):
        graph = RandomKeys(max(1, round(density * n))).build(n, seed=0)
        rows += [{'n': n, 'density': density, **row}
                 for row in measure(graph, heads, channels, rounds)]
    report(rows, 'crossover', out)
    for n in progress(lengths, 'lengths in turn'):
        graph = BipartiteGraph.batch([Full().build(n + number % 2)
                                      for number in range(max(2, TOKENS // n))])
        calls += [{'n': n, 'pairs': n**2, **row} for row in measure(graph, heads, channels, rounds)]
    report(calls, 'crossover_lengths', out)
    training, own_training = ([row for row in part if row['pass'] == 'forward+backward']
                              for part in (rows, calls))
    kind = torch.device(device).type
    fused = SPARSE[kind][-1]
    measured = {n: dense_from([row for row in training if row['n'] == n and row['density'] < 1],
                              fused, 'density') for n in nodes}
    worst = max(row['auto / best'] for row in rows + calls)
    print(f"'auto' took at most {worst:.2f} times the best")
    print(f'DENSE_ABOVE of CPUs is {DENSE_ABOVE}; measured here: {measured}')
    print(f'PAIRS_OF_A_CALL is {PAIRS_OF_A_CALL.get(kind)}; measured here: '
          f'{dense_from(own_training, fused, "pairs")}')
    chosen = [row for row in training if row['n'] == max(nodes)]
    log_log({name: ([row['density'] for row in chosen], [row[f'{name} ms'] for row in chosen])
             for name in _backends()}, 'crossover', out, x='density', y='forward + backward, ms',
            title=f'{max(nodes)} tokens, {heads} heads of {channels}')


def measure(graph: BipartiteGraph, heads: int, channels: int, rounds: int) -> list[dict]:
    """Return the milliseconds of each backend along one graph, for a training step and for
    inference."""
    inputs = [torch.randn(graph.num_queries, heads, channels, requires_grad=True) for _ in range(3)]

    def step(backend: str) -> None:
        torch.autograd.grad(edge_attention(*inputs, graph, backend=backend).sum(), inputs)

    def infer(backend: str) -> None:
        with torch.no_grad():
            edge_attention(*inputs, graph, backend=backend)

    rows = []
    for name, run in (('forward+backward', step), ('forward', infer)):
        times = interleave({backend: lambda b=backend, run=run: run(b)
                            for backend in _backends()}, rounds)
        best = min(seconds for backend, seconds in times.items() if backend != 'auto')
        rows.append({'pass': name,
                     **{f'{backend} ms': 1e3 * seconds for backend, seconds in times.items()},
                     'auto / best': times['auto'] / best})
    return rows


def _backends() -> tuple[str, ...]:
    return (*SPARSE[torch.get_default_device().type], 'sdpa', 'auto')


def dense_from(rows: list[dict], fused: str, at: str) -> float | str:
    """Interpolate where the times of dense and fused attention cross. Complete graphs need no mask,
    so they are excluded."""
    if not rows:
        return 'not measured'
    advantage = [math.log(row[f'{fused} ms'] / row['sdpa ms']) for row in rows]
    where = [row[at] for row in rows]
    for i in range(1, len(rows)):
        low, high = advantage[i - 1:i + 1]
        if low < 0 <= high:
            share = -low / (high - low)
            return round(where[i - 1] + share * (where[i] - where[i - 1]), 2)
    return where[0] if advantage[0] >= 0 else f'above {where[-1]}'


if __name__ == '__main__':
    run_benchmark(main)
