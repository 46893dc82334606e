"""The kernels for GPUs against what memory and instructions allow; computed, not measured.

    python -m experiments.benchmarks.roofline
    python -m experiments.benchmarks.roofline --quick

To measure them takes a GPU: python -m experiments.benchmarks.gpu
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from jsonargparse.typing import PositiveInt

from experiments.benchmarks.machine_code import (
    TERMS,
    compiled,
    distinct,
    environment_compiles,
    operators,
)
from experiments.benchmarks.measure import progress, run_benchmark
from experiments.runs.tables import report

# An H200: bytes of its memory, and instructions of its 132 processors that start one for each of
# four warps, a second at 1.75 GHz; operations of dense attention on its tensor cores as flash
# attention comes to.
BYTES_PER_SECOND, INSTRUCTIONS_PER_SECOND, FLOPS_PER_SECOND = 4.8e12, 132 * 4 * 1.75e9, 500e12
REGISTERS = 65536  # of a processor
# What each kernel takes from elsewhere for one edge of one head: vectors of keys and values, of
# queries and gradients; and beside them the number of the node, statistics, weights.
VECTORS = {'attend_rows': 2, 'grads_of_queries': 2, 'grads_of_keys': 2, 'dot_of_rows': 1,
           'sum_of_rows': 1, 'weigh_rows': 1, 'softmax_backward': 0}
BESIDE = {'attend_rows': 4, 'grads_of_queries': 4, 'grads_of_keys': 8 + 32, 'dot_of_rows': 8,
          'sum_of_rows': 8, 'weigh_rows': 8, 'softmax_backward': 20}
SHAPES = {(16384, 41): '0.25 %', (16384, 164): '1 %', (16384, 819): '5 %',
          (131072, 64): '64 keys each'}


def main(
    dtype: Literal['bfloat16', 'float16', 'float32'] = 'bfloat16',
    channels: PositiveInt = 64,
    heads: PositiveInt = 16,
    capability: PositiveInt = 90,
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Compiles every kernel, and says what an edge takes of memory and of instructions.

    Args:
        dtype: Of queries, keys and values.
        channels: Width of a head.
        heads: Number of heads.
        capability: Compute capability of the GPU, 90 for 9.0.
        quick: Without bias, gate and dropout.
        out: Where the tables go.
    """
    if not environment_compiles():
        raise ValueError("TRITON_INTERPRET must not be set, for kernels are compiled (got 1)")
    rows = []
    for terms in TERMS[:1 if quick else None]:
        work = operators(getattr(torch, dtype), channels, terms, heads=heads)
        for (operator, name), launch in progress(distinct(work).items(), terms):
            code, kernel = compiled(launch, capability), name.split(' ')[0]
            if kernel not in VECTORS:
                continue
            of_node = launch.arguments.get('x', launch.arguments.get('key'))
            itemsize = 0 if of_node is None else of_node.element_size()
            # A softmax alone has no values.
            vectors = VECTORS[kernel] - (launch.arguments.get('VALUE_CHANNELS') == 0)
            size = vectors * channels * itemsize + BESIDE[kernel]
            rows.append({
                'terms': terms, 'operator': operator, 'kernel': kernel, 'bytes/edge': size,
                'flops/edge': 2 * vectors * channels * (2 if 'grads' in kernel else 1),
                'instructions/edge': code.instructions_per_edge,
                'memory ps': 1e12 * size / BYTES_PER_SECOND,
                'instructions ps': 1e12 * code.instructions_per_edge / INSTRUCTIONS_PER_SECOND,
                'registers': code.registers, 'spilled': code.spilled, 'shared': code.shared,
                'warps/processor': min(32, REGISTERS // (32 * code.registers))})
    print('computed, not measured; of one head, to and from memory, none of it in a cache:')
    report(rows, 'roofline', out)
    print('computed, not measured; all heads:')
    report([against_dense(rows, n, degree, channels, heads) for n, degree in SHAPES],
           'roofline_shapes', out)


def against_dense(rows: list[dict], n: int, degree: int, channels: int, heads: int) -> dict:
    """The least time of attention on one graph, beside that of unmasked flash attention."""
    edges, pairs = heads * n * degree, heads * n * n
    floor = {row['kernel']: max(row['memory ps'], row['instructions ps']) * 1e-12 * edges
             for row in rows if row['terms'] == TERMS[0]
             and row['operator'].startswith('edge_attention')}
    backward = floor['grads_of_queries'] + floor['grads_of_keys']
    dense = 4 * channels * pairs / FLOPS_PER_SECOND  # two products, and five backward
    return {'tokens': n, 'density': SHAPES[n, degree], 'forward ms': 1e3 * floor['attend_rows'],
            'forward+backward ms': 1e3 * (floor['attend_rows'] + backward),
            'flash forward ms': 1e3 * dense, 'flash forward+backward ms': 3.5e3 * dense,
            'break-even density %': 100 * degree / n * 3.5 * dense
            / (floor['attend_rows'] + backward)}


if __name__ == '__main__':
    run_benchmark(main)
