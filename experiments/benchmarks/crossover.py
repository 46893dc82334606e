"""Where dense attention overtakes sparse attention on this machine.

    python -m experiments.benchmarks.crossover
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import torch
from jsonargparse import auto_cli

from experiments.benchmarks.measure import interleave, log_log, progress, report
from graphattn import functional
from graphattn.functional import edge_attention
from graphattn.patterns import RandomKeys

BACKENDS = ('csr', 'numba', 'sdpa', 'auto')


def main(
    nodes: list[int] = (256, 1024, 4096),
    densities: list[float] = (0.002, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.),
    heads: int = 4,
    channels: int = 32,
    rounds: int = 7,
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Times forward with backward of each backend, and what 'auto' makes of it.

    Args:
        nodes: Numbers of queries and of keys.
        densities: Shares of the pairs that are edges.
        heads: Number of heads, which share the graph.
        channels: Width of a head.
        rounds: Measurements of each case, of which the median counts.
        quick: Fewer sizes, which end within a minute.
        out: Where table and figure go.
    """
    if quick:
        nodes, rounds = (256, 1024), 3
    rows = [measure(n, density, heads, channels, rounds)
            for n, density in progress(product(nodes, densities), 'crossover')]
    report(rows, 'crossover', out)
    for n in nodes:
        dense_wins = [row['density'] for row in rows
                      if row['n'] == n and row['sdpa ms'] < row['numba ms']]
        first = f'{min(dense_wins):.0%}' if dense_wins else 'no density'
        print(f'{n} tokens: dense attention is faster from {first} on')
    print(f"'auto' goes dense above {functional.DENSE_ABOVE:.0%}; it took at most "
          f"{max(row['auto / best'] for row in rows):.2f} times the best")
    chosen = [row for row in rows if row['n'] == max(nodes)]
    log_log({name: ([row['density'] for row in chosen], [row[f'{name} ms'] for row in chosen])
             for name in BACKENDS}, 'crossover', out, x='density', y='forward + backward, ms',
            title=f'{max(nodes)} tokens, {heads} heads of {channels}')


def measure(n: int, density: float, heads: int, channels: int, rounds: int) -> dict:
    """Milliseconds of each backend at one size and density."""
    graph = RandomKeys(max(1, round(density * n))).build(n, seed=0)
    inputs = [torch.randn(n, heads, channels, requires_grad=True) for _ in range(3)]

    def step(backend: str) -> None:
        torch.autograd.grad(edge_attention(*inputs, graph, backend=backend).sum(), inputs)

    times = interleave({name: lambda name=name: step(name) for name in BACKENDS}, rounds)
    best = min(seconds for name, seconds in times.items() if name != 'auto')
    return {'n': n, 'density': density,
            **{f'{name} ms': 1e3 * seconds for name, seconds in times.items()},
            'auto / best': times['auto'] / best}


if __name__ == '__main__':
    auto_cli(main)
