"""The sequence length at which dense attention overtakes fused attention on this machine, along
complete graphs.

    python -m experiments.benchmarks.crossover
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt

from experiments.benchmarks.measure import (
    SPARSE,
    benchmark,
    interleave,
    log_log,
    progress,
    run_benchmark,
)
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.functional.choose import PAIRS_OF_A_CALL
from graphattn.patterns import Full


@benchmark(lengths=(20, 320), tokens=1024, rounds=3)
def main(
    lengths: list[PositiveInt] = (20, 40, 80, 160, 320, 640),
    tokens: PositiveInt = 8192,
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    rounds: PositiveInt = 7,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time each backend, and the backend that 'auto' chooses, along complete graphs of several
    lengths.

    Args:
        lengths: Numbers of tokens of sequences with complete graphs. Every other sequence has one
            token more, so that dense attention cannot batch them.
        tokens: Number of tokens of all sequences together.
    """
    rows = []
    for n in progress(lengths, 'crossover'):
        graph = BipartiteGraph.batch([Full().build(n + number % 2)
                                      for number in range(max(2, tokens // n))])
        rows += [{'n': n, 'pairs': n**2, **row} for row in measure(graph, heads, channels, rounds)]
    report(rows, 'crossover', out)
    training = [row for row in rows if row['pass'] == 'forward+backward']
    kind = torch.device(device).type
    worst = max(row['auto / best'] for row in rows)
    print(f"'auto' took at most {worst:.2f} times the best")
    print(f'PAIRS_OF_A_CALL is {PAIRS_OF_A_CALL.get(kind)}; measured here: '
          f'{dense_from(training, SPARSE[kind][-1], "pairs")}')
    log_log({name: (list(lengths), [row[f'{name} ms'] for row in training])
             for name in _backends()}, 'crossover', out, x='tokens of a sequence',
            y='forward + backward, ms', title=f'{tokens} tokens, {heads} heads of {channels}')


def measure(graph: BipartiteGraph, heads: int, channels: int, rounds: int) -> list[dict]:
    """Time each backend along one graph, in milliseconds. Return a row for a training step and a
    row for inference."""
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
    """Return the value from which dense attention is faster than fused attention, by interpolation
    between rows.

    Args:
        rows: Rows of times, by ascending value.
        fused: Name of the fused backend.
        at: The column of the value, such as the number of tokens.
    """
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
