"""Attention along windows, bands, blocks, the past and grids, beside SDPA and FlexAttention.

SDPA receives a dense mask. FlexAttention is compiled with a function of positions, and has no
backward pass on CPUs. If it does not compile, its row is missing and the reason is printed.

    python -m experiments.benchmarks.attention windows
    python -m experiments.benchmarks.attention windows --only '["image 64 x 64, 7 x 7"]' --heads 4
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from experiments.benchmarks import attention
from experiments.benchmarks import measure as bench
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.patterns import Causal, Neighborhood, Pattern, ShiftedWindows, SlidingWindow

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # batch, head, query, key


def near(radius: int, dilation: int = 1) -> MaskFunction:
    def is_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        offset = (key - query).abs()
        return (offset <= radius * dilation) & (offset % dilation == 0)
    return is_near


def together(block: int) -> MaskFunction:
    return lambda batch, head, query, key: query // block == key // block


def near_on_grid(lengths: Sequence[int], window: Sequence[int]) -> MaskFunction:
    def is_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = query >= 0
        for length, width in zip(lengths[::-1], window[::-1]):
            start = (query % length - width // 2).clamp(0, length - width)
            near = near & (key % length >= start) & (key % length < start + width)
            query, key = query // length, key // length
        return near
    return is_near


def shapes(nodes: int, windows: Sequence[int] = (33, 129, 257, 1025),
           blocks: Sequence[int] = (64, 512), grids: dict[str, tuple] | None = None,
           ) -> dict[str, tuple[int, Pattern, MaskFunction]]:
    """Return the number of tokens, the pattern and the same mask for FlexAttention, by name."""
    radius = windows[0] // 2
    found = {f'window of {window}': (SlidingWindow(window // 2), near(window // 2))
             for window in windows}
    found[f'band of {windows[0]}, every fourth key'] = (
        SlidingWindow(radius, dilation=4), near(radius, 4))
    found['causal'] = Causal(), lambda batch, head, query, key: key <= query
    found |= {f'blocks of {block}': (ShiftedWindows(block, ()), together(block))
              for block in blocks}
    return {name: (nodes, *pair) for name, pair in found.items()} | {
        name: (math.prod(lengths), Neighborhood(window, lengths[1:]),
               near_on_grid(lengths, window))
        for name, (lengths, window) in (GRIDS if grids is None else grids).items()}


# Lengths of the axes, and of the window along each, by name.
GRIDS = {'image 64 x 64, 7 x 7': ((64, 64), (7, 7)),
         'video 8 x 32 x 32, 3 x 5 x 5': ((8, 32, 32), (3, 5, 5)),
         'video 8 x 32 x 32, 3 x 7 x 7': ((8, 32, 32), (3, 7, 7))}
QUICK = dict(nodes=256, windows=(33,), blocks=(64,), grids={
    'image 16 x 16, 7 x 7': ((16, 16), (7, 7)), 'video 4 x 8 x 8, 3 x 5 x 5': ((4, 8, 8),
                                                                             (3, 5, 5))})


@bench.benchmark()
def main(
    nodes: PositiveInt = 4096,
    only: list[str] | None = None,
    heads: PositiveInt = 12,
    channels: PositiveInt = 64,
    rounds: PositiveInt = 5,
    compiled: bool = True,
    device: str = 'cpu',
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time the forward pass, and forward with backward, in one interleaved run.

    Args:
        nodes: Number of tokens, except along grids.
        only: Names of the graphs, such as 'causal'; all if omitted.
        compiled: Include FlexAttention, which takes a minute to compile.
        quick: Use small graphs, without FlexAttention.
    """
    found = shapes(**QUICK) if quick else shapes(nodes)
    if unknown := sorted(set(only or ()) - set(found)):
        raise ValueError(f"'only' must contain only graphs from {[*found]} (got {unknown})")
    rows = []
    for name in bench.progress(only or found, 'windows'):
        n, pattern, is_edge = found[name]
        rows += measure(name, pattern.build(n), heads, channels, rounds,
                        is_edge if compiled and not quick else None)
    report(rows, 'windows', out)


def measure(name: str, graph: BipartiteGraph, heads: int, channels: int, rounds: int,
            is_edge: MaskFunction | None) -> list[dict]:
    known, inputs = attention.cases(graph, heads, channels, torch.float)
    backend = bench.SPARSE[graph.device.type][-1]
    forwards = {f'graphattn, {backend}': known[backend],
                **{case: known[case] for case in ('masked SDPA', 'full SDPA')}}
    inferred = dict(forwards)
    if is_edge is not None:
        inferred |= flex(is_edge, inputs)
    passes = {f'{case}/infer': partial(bench.infer, each) for case, each in inferred.items()}
    passes |= {f'{case}/train': partial(bench.train, each, inputs)
               for case, each in forwards.items()}
    times = bench.interleave(passes, rounds, seconds=60.)
    return [{'graph': name, 'density': graph.density(), 'case': case,
             'forward ms': 1e3 * times[f'{case}/infer'],
             'masked SDPA / forward': times['masked SDPA/infer'] / times[f'{case}/infer'],
             'forward+backward ms': 1e3 * times.get(f'{case}/train', math.nan),
             'masked SDPA / forward+backward':
                 times['masked SDPA/train'] / times.get(f'{case}/train', math.nan)}
            for case in inferred]


def flex(is_edge: MaskFunction, inputs: list[Tensor]) -> dict[str, Callable[[], Tensor]]:
    """Return compiled FlexAttention by name, or nothing if it does not compile."""
    size, device = inputs[0].size(0), inputs[0].device
    contiguous = [each.detach().transpose(0, 1)[None].contiguous() for each in inputs]
    with bench.default_device(None):
        block_mask = create_block_mask(is_edge, None, None, size, size, device=str(device))
        torch.compiler.reset()  # which limits how often a function is compiled
        attend = torch.compile(flex_attention, dynamic=False)

        def run() -> Tensor:
            return attend(*contiguous, block_mask=block_mask)[0].transpose(0, 1)

        try:
            with torch.no_grad():
                run()
        except Exception as error:
            print(f'skipped FlexAttention, which does not compile: {str(error).splitlines()[0]}')
            return {}
    return {'FlexAttention': run}
