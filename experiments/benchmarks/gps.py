r"""Time and memory of a training step of GPS layers, with PyG's attention and with attention along
edges.

All layers have the same feed-forward network and the same messages, by default none, so they differ
only in their attention.

    python -m experiments.benchmarks.transformer_conv gps
    python -m experiments.benchmarks.transformer_conv gps --nodes '[120]' --total 3840 --degree 50 \
        --depth 6
    python -m experiments.benchmarks.transformer_conv gps --nodes '[100000]' --total 100000 \
        --layers '[PyG performer, BigBird, Exphormer]'
    python -m experiments.benchmarks.transformer_conv gps --quick
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch_geometric.nn import GINConv, GPSConv

from experiments.benchmarks import measure as bench
from experiments.runs.tables import report
from graphattn.layers import GraphGPSConv
from graphattn.sources import BlockModelSource

PYG = {'PyG multihead': 'multihead', 'PyG performer': 'performer'}
PATTERNS = {'full': 'Full()', 'BigBird': 'bigbird(block=16)', 'Exphormer': 'exphormer()'}
BLOCK_MODEL = 'block model'  # its graph contains a quarter of all pairs before training
LAYERS = [*PYG, *PATTERNS, BLOCK_MODEL]


@bench.benchmark(nodes=(32, 128), total=256, rounds=2)
def main(
    nodes: list[PositiveInt] = (32, 128, 512, 2048, 8192),
    total: PositiveInt = 8192,
    channels: PositiveInt = 64,
    heads: PositiveInt = 4,
    degree: NonNegativeInt = 0,
    depth: PositiveInt = 1,
    layers: list[str] = (*PYG, *PATTERNS),
    rounds: PositiveInt = 5,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time a training step of each GPS layer alternately, and measure the peak memory of each in a
    separate process.

    Args:
        nodes: Numbers of nodes of a graph.
        total: Number of nodes of a batch.
        channels: Width of a node.
        heads: Number of heads.
        degree: Number of random edges of each node. GIN sends messages along these edges; with 0,
            there are no messages.
        depth: Number of layers.
        layers: The layers to measure, some of: PyG multihead, PyG performer, full, BigBird,
            Exphormer, block model.
    """
    if unknown := [name for name in layers if name not in LAYERS]:
        raise ValueError(f"'layers' must contain only layers from {', '.join(LAYERS)} (got "
                         f"{', '.join(unknown)})")
    settings = [Setting(size, max(1, total // size), channels, heads, degree, depth)
                for size in nodes]
    rows = [row for setting in bench.progress(settings, 'gps')
            for row in measure(setting, layers, rounds)]
    report(rows, 'gps', out)


class Setting(NamedTuple):
    nodes: int
    graphs: int
    channels: int
    heads: int
    degree: int
    depth: int

    def model(self, name: str) -> nn.ModuleList:
        torch.manual_seed(0)
        return nn.ModuleList(self.layer(name) for _ in range(self.depth))

    def layer(self, name: str) -> nn.Module:
        messages = None
        if self.degree:
            messages = GINConv(nn.Sequential(nn.Linear(self.channels, self.channels), nn.ReLU(),
                                             nn.Linear(self.channels, self.channels)))
        if name in PYG:
            # Without this width, a head of the performer would have 64 channels.
            size = {'head_channels': self.channels // self.heads} if 'performer' in name else {}
            return GPSConv(self.channels, messages, self.heads, attn_type=PYG[name],
                           attn_kwargs=size)
        source = PATTERNS.get(name) or BlockModelSource(self.heads, self.channels // self.heads, 16)
        return GraphGPSConv(self.channels, messages, self.heads, attn_kwargs={'source': source})

    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = bench.seeded()
        x = torch.randn(self.graphs * self.nodes, self.channels, generator=generator)
        batch = torch.arange(self.graphs).repeat_interleave(self.nodes)
        query = torch.arange(len(x)).repeat_interleave(self.degree)
        key = torch.randint(self.nodes, query.shape, generator=generator)
        return x, torch.stack([key + query // self.nodes * self.nodes, query]), batch


def measure(setting: Setting, layers: Sequence[str], rounds: int) -> list[dict]:
    """Time a training step of the layers with the names ``layers``, and measure its peak memory."""
    data = setting.data()
    times = bench.interleave({name: partial(step, setting.model(name), *data) for name in layers},
                             rounds, seconds=60.)
    return [{'nodes': setting.nodes, 'graphs': setting.graphs, 'layer': name,
             'train ms': 1e3 * seconds, f'{layers[0]} / time': times[layers[0]] / seconds,
             'peak MiB': bench.elsewhere(peak_of_step, setting, name) / 2**20}
            for name, seconds in times.items()]


def step(layers: nn.ModuleList, x: Tensor, edge_index: Tensor, batch: Tensor) -> None:
    for layer in layers:
        x = layer(x, edge_index, batch)
    # PyG's layers have a norm for the messages even if they have no messages.
    torch.autograd.grad(x.square().sum(), list(layers.parameters()), allow_unused=True)


def peak_of_step(setting: Setting, name: str) -> int:
    """Return the peak memory of a training step with the layer called ``name``, in bytes."""
    layers, data = setting.model(name), setting.data()
    return bench.peak_bytes(lambda: step(layers, *data), warm_up=1)
