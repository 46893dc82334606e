"""Numbers of tiles of pairs that contain edges, before and after ordering tokens by cluster.

Tensor cores multiply whole tiles, so an edge costs as much as all pairs of its tile. In token
order, graphs sampled from block models fill nearly all tiles. If tokens are ordered by their
strongest cluster, the pairs of two clusters are adjacent. Many tiles are then empty if memberships
are hard and clusters are at least as large as tiles. Hardly any tile is empty if every token
belongs a little to every cluster.

Times are computed, not measured, for one head, forward and backward, at the rates of python -m
experiments.benchmarks.roofline.

    python -m experiments.benchmarks.tiles
    python -m experiments.benchmarks.tiles --quick
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure
from torch import Tensor

from experiments.benchmarks.measure import Density, benchmark, progress, run_benchmark
from experiments.runs.figures import report_figure
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.samplers import FactorModel, sample_bernoulli

# By name: the number of clusters, and the fraction of a token's membership that its strongest
# cluster has.
MODELS = {'128 hard clusters': (128, 1.), '16 hard clusters': (16, 1.),
          '16 clusters, 99 % in one': (16, 0.99), '16 clusters, all alike': (16, 1 / 16)}
ORDERS = ('as they come', 'by cluster', 'nearby')
PS_OF_AN_EDGE = 170.  # time of an edge in a row kernel at 64 channels
PS_OF_A_PAIR = 1.8  # of dense tiles


@benchmark(nodes=(1024,))
def main(
    nodes: list[PositiveInt] = (4096,),
    densities: list[Density] = (0.01, 0.05, 0.2),
    tiles: list[PositiveInt] = (64, 128),
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Count the tiles of graphs sampled from block models.

    Args:
        nodes: Numbers of tokens.
        densities: Expected fractions of all pairs that are edges, at most 0.5.
        tiles: Numbers of queries and keys of a tile.
    """
    rows = []
    for n, name, density in progress(product(nodes, MODELS, densities), 'tiles'):
        rows += count(n, name, density, tiles)
    report(rows, 'tiles', out)
    draw(rows, max(nodes), out)


def count(n: int, name: str, density: float, tiles: list[int]) -> list[dict]:
    """Return a row for each order of the tokens and each tile size, with the numbers of tiles that
    contain edges."""
    graph, cluster = draw_graph(n, *MODELS[name], density)
    orders = {'as they come': torch.arange(n), 'by cluster': cluster.argsort(stable=True),
              'nearby': graph.nearby_order()}
    rows = []
    for (order, nodes), tile in product(orders.items(), tiles):
        live = live_tiles(graph.reorder(nodes), tile)
        pairs = live * tile**2
        rows.append({'n': n, 'model': name, 'density': graph.density(), 'tile': tile,
                     'order': order, 'live tiles': live / (-(-n // tile))**2,
                     'edges per pair of live tiles': graph.num_edges / max(pairs, 1),
                     'tiles ms': 1e-9 * PS_OF_A_PAIR * pairs,
                     'rows ms': 1e-9 * PS_OF_AN_EDGE * graph.num_edges})
    return rows


def draw_graph(n: int, clusters: int, share: float,
               density: float) -> tuple[BipartiteGraph, Tensor]:
    """Sample a graph of an expected density; return the graph, and the strongest cluster of each
    token.

    If two clusters are joined, a pair of their tokens is an edge with about probability 1/2. At
    least one pair of clusters is joined.
    """
    torch.manual_seed(0)
    cluster = torch.randint(clusters, (n,))
    rest = (1 - share) / max(clusters - 1, 1)
    member = torch.full((n, clusters), rest).scatter_(1, cluster[:, None], share)
    joined = (torch.rand(clusters, clusters) < 2 * density).float() / 2
    if not member.sum(0) @ joined @ member.sum(0):
        joined[cluster[0], cluster[-1]] = 0.5  # otherwise there would be no edges
    model = FactorModel(member, joined, member)
    scale = density * n**2 / float(model.expected_edges().sum())
    return sample_bernoulli(FactorModel(member, (joined * scale).clamp(max=1.), member)), cluster


def live_tiles(graph: BipartiteGraph, tile: int) -> int:
    """Return the number of tiles that FlexAttention computes with the mask of a graph."""
    mask = graph.to_block_mask(tile=tile, is_compact=True)
    return int(mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum())


def draw(rows: list[dict], n: int, out: Path) -> None:
    """Draw the fraction of tiles that contain edges over the density of the graph, for each
    model."""
    tile = max(row['tile'] for row in rows)
    figure = Figure(figsize=(12, 3.6), layout='constrained')
    for axes, name in zip(figure.subplots(1, len(MODELS), sharey=True), MODELS):
        for order in ORDERS:
            own = [row for row in rows if (row['n'], row['model'], row['order'], row['tile'])
                   == (n, name, order, tile)]
            axes.plot([100 * row['density'] for row in own], [row['live tiles'] for row in own],
                      marker='o', label=order)
        axes.set(title=name, xlabel='density, %', ylim=(0, 1.05))
        axes.grid()
    figure.supylabel('fraction of tiles that contain an edge')
    figure.suptitle(f'{n:,} tokens, tiles of {tile} x {tile} pairs')
    figure.legend(*axes.get_legend_handles_labels(), loc='outside right center')
    report_figure(figure, 'tiles', out)


if __name__ == '__main__':
    run_benchmark(main)
