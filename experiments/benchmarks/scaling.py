"""Training step of attention with a fixed number of keys per query, over the length.

Random keys are anywhere in memory, so the time per edge is bound by memory. The table also has the
time of only reading and writing the rows of an edge.

    python -m experiments.benchmarks.attention scaling
    python -m experiments.benchmarks.attention scaling --nodes '[1048576]' --rounds 3 \
        --pattern 'SlidingWindow(4) | RandomKeys(7)'
    python -m experiments.benchmarks.attention scaling --quick
"""

import time
from pathlib import Path

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from numba import njit
from torch import Tensor

from experiments.benchmarks import measure as bench
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.extension import run_calls
from graphattn.functional import edge_attention
from graphattn.patterns import Pattern, RandomKeys, parse


@bench.benchmark(nodes=(1024, 2048), rounds=2)
def main(
    nodes: list[PositiveInt] = (4096, 8192, 16384, 32768, 65536, 131072),
    pattern: str = 'RandomKeys(32)',
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    rounds: PositiveInt = 5,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time a training step at each length, in a separate process for each, so that the peak memory
    of the process is that of the step.

    Args:
        nodes: Numbers of tokens.
        pattern: A pattern with about the same number of keys per query at every length.
    """
    edges = parse(pattern)
    rows = [bench.elsewhere(measure, n, edges, heads, channels, rounds, start='spawn')
            for n in bench.progress(nodes, 'scaling')]
    for row in rows:
        for name in (name for name in ('ns per edge and head', 'ns of memory') if name in row):
            row[f'{name}, times first'] = row[name] / rows[0][name]
    report(rows, 'scaling', out)


def measure(n: int, pattern: Pattern, heads: int, channels: int, rounds: int) -> dict:
    """Return the median time of a training step along a pattern, and its peak memory above the
    memory before."""
    inputs = [torch.randn(n, heads, channels, requires_grad=True) for _ in range(3)]
    graph = pattern.build(n, seed=0)
    query, key, value = inputs
    train_step([query[:8], key, value], RandomKeys(1).build(8, n))  # compiles
    bench.start_peak_over()
    before, timed = bench.held_bytes(), bench.stopwatch()
    times = [timed(lambda: train_step(inputs, graph)) for _ in range(rounds)]
    step, most = sorted(times)[len(times) // 2], bench.max_held_bytes()
    row = {'n': n, 'edges': graph.num_edges, 'step ms': 1e3 * step,
           'ns per edge and head': 1e9 * step / (graph.num_edges * heads),
           'peak MiB': (most - before) / 2**20, 'whole process MiB': most / 2**20}
    if graph.device.type == 'cpu':
        row['ns of memory'] = 1e9 * seconds_of_memory(graph.key.numpy(), n, channels)
    return row


def train_step(inputs: list[Tensor], graph: BipartiteGraph) -> None:
    fused = bench.SPARSE[graph.device.type][-1]
    torch.autograd.grad(edge_attention(*inputs, graph, backend=fused).sum(), inputs)


def seconds_of_memory(key: np.ndarray, n: int, channels: int) -> float:
    """Return the seconds per edge that it takes only to read the rows of keys, values and their
    gradients in the order of the edges, and to write the gradients."""
    parts = np.array_split(key, torch.get_num_threads())
    # Not zeros, whose pages map to a single cached page until they are written.
    calls = [(_walk, part, *np.ones((4, n, channels), np.float32)) for part in parts]
    run_calls([(_walk, part[:1], *tables) for _, part, *tables in calls])  # compiles
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run_calls(calls)
        times.append(time.perf_counter() - start)
    return min(times) / len(key)


@njit(nogil=True)
def _walk(keys, key, value, grad_key, grad_value):
    for j in keys:
        for c in range(key.shape[1]):
            grad_key[j, c] += key[j, c]
            grad_value[j, c] += value[j, c]
