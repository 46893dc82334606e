"""Registers and memory of all GPU kernels in all configurations, checked against bounds.

The benchmark takes half an hour on one core and needs no GPU. Compiled kernels are cached on disk.

    python -m experiments.benchmarks.bounds
    python -m experiments.benchmarks.bounds --quick
    python -m experiments.benchmarks.bounds --dtypes '[float32]' --channels '[16]'
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from jsonargparse.typing import PositiveInt

from experiments.benchmarks.machine_code import (
    TERMS,
    Launch,
    compiled,
    drawing,
    environment_compiles,
    launches,
    operators,
    sampling,
)
from experiments.benchmarks.measure import benchmark, progress, run_benchmark
from experiments.runs.tables import report

# 'registers' per thread, so that twelve warps fit a processor. 'spilled' bytes per thread outside
# the loop. 'in loop': instructions in the loop for spills. 'shared' bytes per program, so that two
# programs fit.
MAX = {'registers': 168, 'spilled': 48, 'in loop': 8, 'shared': 2**16}
# Kernels that compute gradients of attention, or tiles, may use all registers of a thread.
TAKE_ALL = {'grads_of_queries', 'grads_of_keys', 'try_tiles', 'draw_keys'}
# Attention tiles with several terms, or of 128 channels, need more; with all terms they spill in
# their loops on GPUs of compute capability 8.0.
SPILL = {'attend_tiles', 'grads_of_tiled_queries', 'grads_of_tiled_keys'}
MAX_OF = {**dict.fromkeys(TAKE_ALL, MAX | {'registers': 255}),
          **dict.fromkeys(SPILL, MAX | {'registers': 255, 'spilled': 560, 'in loop': 360,
                                        'shared': 2**17})}


@benchmark(dtypes=('bfloat16', 'float32'), channels=(64,), terms=TERMS[-1:], degrees=(4, 128))
def main(
    dtypes: list[Literal['bfloat16', 'float16', 'float32', 'float64']] = (
        'bfloat16', 'float16', 'float32', 'float64'),
    channels: list[PositiveInt] = (1, 16, 32, 64, 80, 128, 256),
    terms: list[Literal[TERMS]] = TERMS,
    degrees: list[PositiveInt] = (4, 128),
    capabilities: list[PositiveInt] = (80, 90),
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Compile all kernels, and fail if a kernel exceeds its bounds.

    Args:
        dtypes: Dtypes of queries, keys and values.
        channels: Widths of a head. Where graphs are sampled, these are numbers of clusters.
        terms: Terms that are added to the logits.
        degrees: Numbers of keys per query. With few keys, a program processes fewer edges at once.
        capabilities: Compute capabilities of the GPUs; 90 is 9.0.
        out: The folder of the tables.
    """
    if not environment_compiles():
        raise ValueError("TRITON_INTERPRET must not be set, because this benchmark compiles the "
                         "kernels (got 1); unset TRITON_INTERPRET")
    rows, seen = [], set()
    for dtype, *setting in progress(product(dtypes, channels, terms, degrees), 'kernels'):
        for launch, capability in product(started(getattr(torch, dtype), *setting), capabilities):
            source = launch.source().hash(), *launch.options.values(), capability
            if source not in seen:
                seen.add(source)
                rows.append({'dtype': dtype, **dict(zip(('channels', 'terms', 'degree'), setting)),
                             'capability': capability, **taken(launch, capability)})
    report(rows, 'bounds', out)
    report(largest(rows), 'bounds_largest', out)
    beyond = sum(is_beyond(row) for row in rows)
    if beyond:
        raise SystemExit(f"{beyond} of {len(rows)} kernels exceed their bounds, which are listed "
                         f"in {out / 'bounds.csv'}")


def started(dtype: torch.dtype, channels: int, terms: str, degree: int) -> Iterator[Launch]:
    """Yield the kernel launches of all operators and samplers for one setting. Attention is
    included with and without features of edges.

    Args:
        dtype: Dtype of queries, keys and values.
        channels: Channels of a head, or number of clusters for samplers.
        terms: The terms that are added to logits, one of ``TERMS``.
        degree: Number of keys per query.
    """
    for num_features in (0, channels):
        for operator, arguments in operators(dtype, channels, terms, degree=degree,
                                             num_features=num_features).items():
            yield from launches(operator, arguments)
    if dtype in (torch.float32, torch.float64):
        yield from (*sampling(dtype, channels), *drawing(dtype, channels))


def taken(launch: Launch, capability: int) -> dict:
    """Return a row with the name of a kernel and the registers and memory that it takes on a GPU of
    a compute capability. The columns are the names in ``MAX``."""
    code = compiled(launch, capability)
    return {'kernel': launch.kernel.__name__, 'registers': code.registers, 'spilled': code.spilled,
            'in loop': code.spills_in_loop, 'shared': code.shared}


def largest(rows: list[dict]) -> list[dict]:
    """Return a row for each kernel and compute capability, with the largest value of each
    resource."""
    found = {}
    for row in rows:
        found.setdefault((row['kernel'], row['capability']), []).append(row)
    return [{'kernel': kernel, 'capability': capability, 'configurations': len(own),
             **{name: max(row[name] for row in own) for name in MAX}}
            for (kernel, capability), own in sorted(found.items())]


def is_beyond(row: dict) -> bool:
    """Return whether the kernel of a row takes more registers or memory than its bound allows."""
    return any(row[name] > most for name, most in MAX_OF.get(row['kernel'], MAX).items())


if __name__ == '__main__':
    run_benchmark(main)
