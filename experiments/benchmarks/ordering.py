"""Speed-up of attention from token orders that place the keys of a query close together.

The benchmark times a training step of attention along graphs of many unordered tokens. The order is
unchanged, or reverse Cuthill-McKee (``BipartiteGraph.nearby_order``), or by cluster if the graph is
drawn from clusters. The table also has the cost of an order: finding the order, reordering the
graph, and permuting tokens and outputs, forward and backward. The permutation is not needed if the
whole model runs in this order. All times are medians after a warm-up call.

    python -m experiments.benchmarks.ordering
    python -m experiments.benchmarks.ordering --quick
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure
from torch import Tensor

from experiments.benchmarks.measure import benchmark, interleave, progress, run_benchmark
from experiments.runs.figures import report_figure
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.patterns import RandomKeys, SlidingWindow
from graphattn.samplers import FactorModel, sample_bernoulli

CLUSTERS = 128


@benchmark(n=2048, rounds=2)
def main(
    n: PositiveInt = 131072,
    keys: PositiveInt = 32,
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    rounds: PositiveInt = 3,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time training steps along each graph, alternately for each order.

    Args:
        n: Number of tokens.
        keys: Mean number of keys per query.
    """
    rows = [row for name in progress(GRAPHS, 'ordering')
            for row in measure(name, n, keys, heads * channels, heads, rounds)]
    report(rows, 'ordering', out)
    draw(rows, n, out)


def measure(name: str, n: int, keys: int, width: int, heads: int, rounds: int) -> list[dict]:
    """Time training steps along a graph in several orders of its tokens, and return a row for each
    order.

    Args:
        name: The kind of graph.
        n: Number of tokens.
        keys: Mean number of keys per query.
        width: Channels of a head.
        heads: Number of heads.
        rounds: Number of measurements.
    """
    torch.manual_seed(0)
    graph, cluster = GRAPHS[name](n, keys)
    x = [torch.randn(n, heads, width // heads, requires_grad=True) for _ in range(3)]
    tokens = torch.randn(n, width, requires_grad=True)
    ways: dict[str, Callable[[], Tensor]] = {'reverse Cuthill-McKee': graph.nearby_order}
    if cluster is not None:
        ways['by cluster'] = lambda: cluster().argsort(stable=True)
    orders = {way: find() for way, find in ways.items()}
    reorders = {way: partial(graph.reorder, order) for way, order in orders.items()}
    found, reordered = interleave(ways, rounds), interleave(reorders, rounds)
    graphs = {'as it comes': graph, **{way: make() for way, make in reorders.items()}}

    def train_step(graph: BipartiteGraph) -> None:
        torch.autograd.grad(edge_attention(*x, graph, backend='numba').sum(), x)

    times = interleave({way: partial(train_step, own) for way, own in graphs.items()}, rounds)
    moved = interleave({way: partial(move, tokens, order) for way, order in orders.items()}, rounds)
    return [{'graph': name, 'order': way, 'edges': graph.num_edges, 'step ms': 1e3 * seconds,
             'ns per edge and head': 1e9 * seconds / (graph.num_edges * heads),
             'times faster': times['as it comes'] / seconds,
             'find ms': 1e3 * found.get(way, 0.), 'reorder ms': 1e3 * reordered.get(way, 0.),
             'move ms': 1e3 * moved.get(way, 0.)}
            for way, seconds in times.items()]


def move(tokens: Tensor, order: Tensor) -> None:
    """Permute tokens by an order and back, in a forward and a backward pass."""
    torch.autograd.grad(tokens[order][order.argsort()].sum(), tokens)


def random_keys(n: int, keys: int) -> tuple[BipartiteGraph, None]:
    return RandomKeys(keys).build(n, seed=0), None


def shuffled_window(n: int, keys: int) -> tuple[BipartiteGraph, None]:
    """Return the graph of a sliding window whose tokens were shuffled, and ``None`` because there
    are no clusters. Keys are near in memory only after the tokens are sorted again."""
    return SlidingWindow(keys // 2).build(n).reorder(torch.randperm(n)), None


def block_model(n: int, keys: int, inside: float) -> tuple[BipartiteGraph, Callable[[], Tensor]]:
    """Sample the graph of a block model. Return the graph, and a function that finds the order of
    the tokens by cluster.

    Args:
        n: Number of tokens.
        keys: Mean number of keys per query.
        inside: Fraction of a query's keys that are in its own cluster.
    """
    member = torch.eye(CLUSTERS)[torch.randint(CLUSTERS, (n,))]
    mixing = inside * torch.eye(CLUSTERS) * CLUSTERS + (1 - inside)
    model = FactorModel(member, (mixing * keys / n).clamp(max=1), member)
    return sample_bernoulli(model), lambda: member.argmax(1)


GRAPHS: dict[str, Callable] = {
    'random keys': random_keys,
    'block model, 50 % inside': lambda n, keys: block_model(n, keys, 0.5),
    'block model, 90 % inside': lambda n, keys: block_model(n, keys, 0.9),
    'block model, all inside': lambda n, keys: block_model(n, keys, 1.),
    'shuffled window': shuffled_window,
}


def draw(rows: list[dict], n: int, out: Path) -> None:
    """Draw the time of a training step for each graph and each order of its tokens."""
    figure = Figure(figsize=(9, 4.5), layout='constrained')
    axes = figure.subplots()
    ways = list(dict.fromkeys(row['order'] for row in rows))
    names = list(GRAPHS)
    for at, way in enumerate(ways):
        own = [row for row in rows if row['order'] == way]
        axes.barh([names.index(row['graph']) + 0.27 * (at - 1) for row in own],
                  [row['step ms'] for row in own], height=0.25, label=way)
    axes.set(title=f'{n:,} tokens', xlabel='ms per training step of attention',
             yticks=range(len(names)), yticklabels=names)
    axes.invert_yaxis()
    axes.grid(axis='x')
    axes.legend(loc='center left', bbox_to_anchor=(1, 0.5))
    report_figure(figure, 'ordering', out)


if __name__ == '__main__':
    run_benchmark(main)
