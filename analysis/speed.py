"""Time of attention along a graph on this machine, compared with the time of full attention."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from analysis.graphs import GraphLike, as_graph, check_count, check_positive
from analysis.result import Result
from graphattn.functional import edge_attention

__all__ = ['Speed', 'speed']

_TURNS = 3
_MAX_SECONDS = 600


@dataclass(frozen=True)
class Speed(Result):
    """Median times of one call of attention, measured alternately on this machine."""

    num_tokens: int  #: Number of queries of the graph.
    density: float  #: Fraction of the pairs that are edges.
    seconds: float  #: Time of attention along the graph.
    #: Time of ``torch.nn.functional.scaled_dot_product_attention`` over all pairs of the same
    #: queries and keys.
    seconds_full: float
    times_as_fast: float  #: ``seconds_full / seconds``.
    threads: int  #: Number of torch's threads.


def speed(
    graph: GraphLike,
    *,
    heads: int = 4,
    head_channels: int = 32,
    hops: int = 1,
    backward: bool = False,
    at_least: float = 0.2,
) -> Speed:
    """Time attention along a graph and full attention, in float32 on the CPU.

    Both run once before the measurement. Times vary with the load of the machine.

    Args:
        graph: See :func:`analysis.graphs.as_graph`.
        heads: Number of heads, which share the graph.
        head_channels: Size of a head.
        hops: Number of hops along the graph. Full attention always has one hop.
        backward: Whether to time the backward pass as well.
        at_least: Minimum seconds of measurement, for attention along the graph and for full
            attention each.

    Example:
        >>> from analysis.speed import speed
        >>> from graphattn.patterns import SlidingWindow
        >>> speed(SlidingWindow(4).build(256), at_least=0.01).density
        0.03485107421875
    """
    check_count('heads', heads)
    check_count('head_channels', head_channels)
    check_count('hops', hops)
    check_positive('at_least', at_least)
    if at_least > _MAX_SECONDS:
        raise ValueError(f"'at_least' must be at most {_MAX_SECONDS} seconds (got {at_least})")
    graph = as_graph(graph)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(side, heads, head_channels, generator=generator).requires_grad_(backward)
        for side in (graph.num_queries, graph.num_keys, graph.num_keys))
    # Heads come first, as torch requires; the transposition is not measured.
    dense = [x.detach().transpose(0, 1)[None].contiguous().requires_grad_(backward)
             for x in (query, key, value)]
    seconds, seconds_full = _medians([
        lambda: edge_attention(query, key, value, graph, hops=hops),
        lambda: F.scaled_dot_product_attention(*dense)], backward, at_least)
    return Speed(graph.num_queries, graph.density(), seconds, seconds_full,
                 seconds_full / seconds, torch.get_num_threads())


def _medians(cases: list[Callable[[], Tensor]], backward: bool, at_least: float) -> list[float]:
    """Return the median seconds of each case, measured for at least ``at_least`` seconds each."""
    from torch.utils.benchmark import Timer

    def step(case: Callable[[], Tensor]) -> None:
        out = case()
        if backward:
            out.sum().backward()

    timers = [Timer('step(case)', globals={'step': step, 'case': case},
                    num_threads=torch.get_num_threads()) for case in cases]
    for case in cases:
        step(case)
    turns = [[timer.blocked_autorange(min_run_time=at_least / _TURNS).median for timer in timers]
             for _ in range(_TURNS)]
    return [statistics.median(of_case) for of_case in zip(*turns)]
