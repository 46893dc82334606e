"""A training step of GraphTransformerConv beside PyG's TransformerConv, in time and memory.

    python -m experiments.benchmarks.transformer_conv
    python -m experiments.benchmarks.transformer_conv --quick
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from experiments.benchmarks.measure import (
    elsewhere,
    interleave,
    peak_bytes,
    progress,
    run_benchmark,
)
from experiments.runs.tables import report
from graphattn.layers import GraphTransformerConv

LAYERS = {'PyG': TransformerConv, 'graphattn': GraphTransformerConv}


def main(
    nodes: PositiveInt = 100_000,
    edges: PositiveInt = 1_000_000,
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    edge_dims: list[NonNegativeInt] = (0, 16),
    rounds: PositiveInt = 5,
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Times a training step of both layers in turns; each peak is that of its own process.

    Args:
        nodes: Nodes of a random graph.
        edges: Edges between them, in no order.
        heads: Number of heads.
        channels: Width of a head; a node has as many numbers as all heads together.
        edge_dims: Features of each edge; 0 for none.
        rounds: Measurements of each case, of which the median counts.
        quick: A smaller graph, which ends within a minute.
        out: Where the table goes.
    """
    if quick:
        nodes, edges, rounds = nodes // 20, edges // 20, 2
    settings = [Setting(nodes, edges, heads, channels, edge_dim) for edge_dim in edge_dims]
    report([row for setting in progress(settings, 'transformer_conv')
            for row in measure(setting, rounds)], 'transformer_conv', out)


class Setting(NamedTuple):
    """The graph, and the layers that are compared on it."""

    nodes: int
    edges: int
    heads: int
    channels: int
    edge_dim: int

    def layer(self, name: str) -> nn.Module:
        torch.manual_seed(0)
        return LAYERS[name](self.heads * self.channels, self.channels, self.heads,
                            edge_dim=self.edge_dim or None)

    def data(self) -> tuple[Tensor, Tensor, Tensor | None]:
        generator = torch.Generator().manual_seed(0)
        number = torch.randint(self.nodes**2, (self.edges * 11 // 10,), generator=generator)
        number = number.unique()  # a few were drawn twice, for which there are more
        number = number[torch.randperm(len(number), generator=generator)[:self.edges]]
        edge_attr = (torch.randn(len(number), self.edge_dim, generator=generator)
                     if self.edge_dim else None)
        x = torch.randn(self.nodes, self.heads * self.channels, generator=generator)
        return x, torch.stack([number % self.nodes, number // self.nodes]), edge_attr


def measure(setting: Setting, rounds: int) -> list[dict]:
    """One row for each layer, the edges sorted beforehand as in all steps but the first."""
    data, layers = setting.data(), {name: setting.layer(name) for name in LAYERS}
    with torch.no_grad():
        outs = [layer(*data) for layer in layers.values()]
    times = interleave({name: lambda layer=layer: step(layer, *data)
                        for name, layer in layers.items()}, rounds, seconds=60.)
    peaks = {name: elsewhere(peak_of_step, setting, name) for name in LAYERS}
    return [{'nodes': setting.nodes, 'edges': setting.edges, 'edge features': setting.edge_dim,
             'layer': name, 'train ms': 1e3 * times[name], 'PyG / time': times['PyG'] / times[name],
             'peak MiB': peaks[name] / 2**20,
             'largest difference': float((outs[0] - outs[1]).abs().max())} for name in LAYERS]


def step(layer: nn.Module, *data: Tensor | None) -> None:
    torch.autograd.grad(layer(*data).sum(), list(layer.parameters()))


def peak_of_step(setting: Setting, name: str) -> int:
    """The most memory of a training step that is not the first, the sorted edges included."""
    step(setting.layer(name), *setting._replace(nodes=50, edges=99).data())  # compiles
    layer, data = setting.layer(name), setting.data()
    return peak_bytes(lambda: step(layer, *data), warm_up=1)


if __name__ == '__main__':
    run_benchmark(main)
