"""Time and memory of a training step of GraphTransformerConv and of PyG's TransformerConv.

The table also has the time of the projections of the nodes alone, which is a lower bound for any
attention.

    python -m experiments.benchmarks.transformer_conv
    python -m experiments.benchmarks.transformer_conv --quick

For a batch of molecules, whose edges are sorted again in every step:

    python -m experiments.benchmarks.transformer_conv --nodes 800 --edges 1700 --graphs 32 \
        --channels 16 --edge_dims '[0]' --anew true --rounds 300
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from experiments.benchmarks import measure as bench
from experiments.runs.tables import report
from graphattn.layers import GraphTransformerConv

LAYERS = {'PyG': TransformerConv, 'graphattn': GraphTransformerConv}
FLOOR = 'projections alone'


@bench.benchmark()
def main(
    nodes: PositiveInt = 100_000,
    edges: PositiveInt = 1_000_000,
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    edge_dims: list[NonNegativeInt] = (0, 16),
    graphs: PositiveInt = 1,
    anew: bool = False,
    rounds: PositiveInt = 5,
    device: str = 'cpu',
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time a training step of both layers alternately, and measure the peak memory of each in a
    separate process.

    Args:
        nodes: Number of nodes of a random graph.
        edges: Number of unordered edges.
        heads: Number of heads.
        channels: Width of a head. The width of a node is the sum of the widths of all heads.
        edge_dims: Numbers of features per edge; 0 for none.
        graphs: Number of equally large graphs into which the nodes are divided.
        anew: Whether each step gets a new tensor of edges, as from a data loader, so that the step
            includes sorting.
        quick: Whether to use a smaller graph, which takes less than a minute.
    """
    if quick:
        nodes, edges, rounds = nodes // 20, edges // 20, 2
    settings = [Setting(nodes, edges, heads, channels, edge_dim, graphs, anew)
                for edge_dim in edge_dims]
    report([row for setting in bench.progress(settings, 'transformer_conv')
            for row in measure(setting, rounds)], 'transformer_conv', out)


class Setting(NamedTuple):
    nodes: int
    edges: int
    heads: int
    channels: int
    edge_dim: int
    graphs: int = 1
    anew: bool = False

    def layer(self, name: str) -> nn.Module:
        torch.manual_seed(0)
        return LAYERS[name](self.heads * self.channels, self.channels, self.heads,
                            edge_dim=self.edge_dim or None)

    def data(self) -> tuple[Tensor, Tensor, Tensor | None]:
        generator, size = bench.seeded(), self.nodes // self.graphs
        number = torch.randint(self.graphs * size**2, (self.edges * 11 // 10,), generator=generator)
        number = number.unique()  # more pairs are drawn than needed, because some repeat
        number = number[torch.randperm(len(number), generator=generator)[:self.edges]]
        edge_attr = (torch.randn(len(number), self.edge_dim, generator=generator)
                     if self.edge_dim else None)
        x = torch.randn(self.nodes, self.heads * self.channels, generator=generator)
        query = number // size
        key = query // size * size + number % size
        return x, torch.stack([key, query]), edge_attr


def measure(setting: Setting, rounds: int) -> list[dict]:
    data, layers = setting.data(), {name: setting.layer(name) for name in LAYERS}
    with torch.no_grad():
        outs = [layer(*data) for layer in layers.values()]
    take_step = step_anew if setting.anew else step
    steps = {name: partial(take_step, layer, *data) for name, layer in layers.items()}
    times = bench.interleave({**steps, FLOOR: partial(project, layers['graphattn'], data[0])},
                             rounds, seconds=60.)
    peaks = {name: bench.elsewhere(peak_of_step, setting, name) / 2**20 for name in LAYERS}
    difference = float((outs[0] - outs[1]).abs().max())
    return [{'nodes': setting.nodes, 'edges': setting.edges, 'edge features': setting.edge_dim,
             'layer': name, 'train ms': 1e3 * seconds, 'PyG / time': times['PyG'] / seconds,
             'peak MiB': peaks.get(name), 'largest difference': difference if name in LAYERS
             else None} for name, seconds in times.items()]


def step(layer: nn.Module, *data: Tensor | None) -> None:
    torch.autograd.grad(layer(*data).sum(), list(layer.parameters()))


def step_anew(layer: nn.Module, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> None:
    """Run a training step with a new tensor of edges, so that the layer must sort the edges."""
    step(layer, x, edge_index.clone(), edge_attr)


def project(layer: nn.Module, x: Tensor) -> None:
    """Run only the projections of ``layer``: compute queries, keys, values and the skip connection,
    and the gradients of the weights."""
    linears = [layer.lin_query, layer.lin_key, layer.lin_value, layer.lin_skip]
    parameters = [parameter for linear in linears for parameter in linear.parameters()]
    torch.autograd.grad(sum(linear(x).sum() for linear in linears), parameters)


def peak_of_step(setting: Setting, name: str) -> int:
    """Return the peak memory of a training step of the layer called ``name``, in bytes, including
    the sorted edges."""
    step(setting.layer(name), *setting._replace(nodes=50, edges=99).data())  # compiles
    layer, data = setting.layer(name), setting.data()
    return bench.peak_bytes(lambda: step(layer, *data), warm_up=1)


if __name__ == '__main__':
    bench.run_benchmark(main, modes=('gps',))
