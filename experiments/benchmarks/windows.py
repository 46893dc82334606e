"""Attention along windows, bands, blocks and the past, compared with SDPA and FlexAttention.

SDPA receives a dense mask. FlexAttention is compiled with a function of positions, and has no
backward pass on CPUs. If FlexAttention does not compile, its row is missing and the reason is
printed.

    python -m experiments.benchmarks.windows
    python -m experiments.benchmarks.windows --quick
"""

from __future__ import annotations

from pathlib import Path

from jsonargparse.typing import PositiveInt
from torch import Tensor

from experiments.benchmarks.grids import MaskFunction, draw, measure
from experiments.benchmarks.measure import benchmark, progress, run_benchmark
from experiments.runs.tables import report
from graphattn.patterns import Causal, Pattern, ShiftedWindows, SlidingWindow


@benchmark(nodes=256, windows=(33, 129), blocks=(64,), compiled=False)
def main(
    nodes: PositiveInt = 4096,
    windows: list[PositiveInt] = (33, 129, 257, 1025),
    blocks: list[PositiveInt] = (64, 512),
    heads: PositiveInt = 12,
    channels: PositiveInt = 64,
    rounds: PositiveInt = 5,
    compiled: bool = True,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time the forward pass, and forward with backward, in one interleaved run.

    Args:
        nodes: Number of tokens.
        windows: Odd numbers of keys around each query. The first also makes a band, with three
            tokens between keys.
        blocks: Numbers of tokens of blocks that attend only to themselves.
        compiled: Include FlexAttention, which takes a minute to compile.
    """
    rows = []
    for name, (pattern, is_edge) in progress(patterns(windows, blocks).items(), 'windows'):
        rows += measure({'pattern': name}, pattern.build(nodes), heads, channels, rounds,
                        is_edge if compiled else None)
    report(rows, 'windows', out)
    draw(rows, 'windows', out)


def patterns(windows: list[int], blocks: list[int]) -> dict[str, tuple[Pattern, MaskFunction]]:
    """Return the patterns to compare by name. Each is a pair of the pattern and a function that
    gives FlexAttention the same mask.

    Args:
        windows: Numbers of keys around a query.
        blocks: Numbers of tokens of blocks that attend only to themselves.
    """
    found = {f'window of {window}': (SlidingWindow(window // 2), near(window // 2))
             for window in windows}
    radius = windows[0] // 2
    found[f'band of {windows[0]}, every fourth key'] = (
        SlidingWindow(radius, dilation=4), near(radius, 4))
    found['causal'] = Causal(), lambda batch, head, query, key: key <= query
    return found | {f'blocks of {block}': (ShiftedWindows(block, ()), together(block))
                    for block in blocks}


def near(radius: int, dilation: int = 1) -> MaskFunction:
    def is_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        offset = (key - query).abs()
        return (offset <= radius * dilation) & (offset % dilation == 0)
    return is_near


def together(block: int) -> MaskFunction:
    return lambda batch, head, query, key: query // block == key // block


if __name__ == '__main__':
    run_benchmark(main)
