r"""The fastest backend, and the memory of each, by structure, size, density and dtype.

    graphattn atlas
    graphattn atlas --backends '[numba, sdpa]' --points 50 --runs '[forward]'
    graphattn atlas --device cuda --backends '[triton, sdpa]'

The benchmark chooses points at random from a table of structures, lengths, densities, numbers and
widths of heads, dtypes and runs. At each point it times all backends and ``backend='auto'`` in
alternation.
"""

import importlib.metadata
import math
import platform
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from experiments.benchmarks import measure as bench
from experiments.runs.figures import report_figure
from experiments.runs.tables import report
from graphattn import BipartiteGraph, ops
from graphattn.functional import edge_attention
from graphattn.patterns import Full, Neighborhood, RandomKeys, SlidingWindow
from graphattn.samplers import FactorModel, sample_bernoulli

BACKENDS = {'cpu': ('numba', 'sdpa'), 'cuda': ('triton', 'sdpa')}
DENSITIES = (0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.)
Run = Literal['forward', 'training']
CLUSTERS = 8  # of a block model; pairs within one are 16 times as likely as others


def window(tokens: int, density: float) -> BipartiteGraph:
    # A window of radius r has n (2 r + 1) - r (r + 1) of the n^2 pairs.
    return SlidingWindow(round(tokens * (1 - math.sqrt(1 - density)))).build(tokens)


def causal(tokens: int, density: float) -> BipartiteGraph:
    radius = round(tokens * (1 - math.sqrt(max(0., 1 - 2 * density))))
    return SlidingWindow(radius, causal=True).build(tokens)


def grid(tokens: int, density: float) -> BipartiteGraph:
    side = math.isqrt(tokens)
    size = min(side, max(1, round(side * math.sqrt(density))))
    return Neighborhood((size, size), (side,)).build(side**2)


def random_keys(tokens: int, density: float) -> BipartiteGraph:
    if density == 1:
        return Full().build(tokens)
    return RandomKeys(max(1, round(density * tokens))).build(tokens, seed=0)


def block_model(tokens: int, density: float) -> BipartiteGraph:
    cluster = torch.arange(tokens, device='cpu') * CLUSTERS // tokens
    member = torch.nn.functional.one_hot(cluster, CLUSTERS).float()
    within = density * CLUSTERS / (1 + (CLUSTERS - 1) / 16)
    mixing = torch.full((CLUSTERS, CLUSTERS), within / 16, device='cpu').fill_diagonal_(within)
    model = FactorModel(member, mixing.clamp_max(1.), member)
    return sample_bernoulli(model, generator=torch.Generator('cpu').manual_seed(0))


# The builder, and the largest density that is measured.
STRUCTURES: dict[str, tuple[Callable[[int, float], BipartiteGraph], float]] = {
    'random': (random_keys, 1.), 'window': (window, .95), 'causal': (causal, .5),
    'grid': (grid, .65), 'block model': (block_model, .2)}


class Point(NamedTuple):
    """One setting: structure and density of the graph, sizes, dtype, and forward or training."""

    structure: str
    tokens: int
    density: float
    heads: int
    channels: int
    dtype: str
    run: str


BASE = {'structure': 'random', 'heads': 4, 'channels': 32, 'dtype': 'float32'}


@bench.benchmark(tokens=(64, 256), points=6, rounds=2)
def main(
    tokens: list[PositiveInt] = (64, 256, 1024, 4096),
    densities: list[bench.Density] = DENSITIES,
    structures: list[str] = tuple(STRUCTURES),
    widths: list[PositiveInt] = (16, 32, 64, 128),
    dtypes: list[Literal['float32', 'bfloat16', 'float16']] = ('float32', 'bfloat16'),
    runs: list[Run] = ('forward', 'training'),
    backends: list[str] | None = None,
    points: PositiveInt = 200,
    rounds: PositiveInt = 5,
    seed: int = 0,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Measure the time of every backend, its spread and its peak memory at points of a table.

    Args:
        tokens: Lengths of sequences.
        densities: Fractions of the pairs that are edges.
        structures: Some of: random, window, causal, grid, block model.
        widths: Channels of a head; 128 channels are divided among the heads.
        dtypes: Types of queries, keys and values.
        runs: forward (without gradients), training (forward and backward), or both.
        backends: Names of backends; by default those that suit the device.
        points: Number of points. Points with random edges, float32 and 4 heads of 32 channels are
            measured first.
        seed: Seed of the choice of points.
    """
    if unknown := [name for name in structures if name not in STRUCTURES]:
        raise ValueError(f"'structures' must contain only names from {', '.join(STRUCTURES)} (got "
                         f"{', '.join(unknown)})")
    names = tuple(backends or BACKENDS[torch.device(device).type])
    for name in names:
        ops.load(name)
    axes = [Point(structure, n, density, 128 // width or 1, width, dtype, run)
            for structure, n, density, width, dtype, run in product(
                structures, tokens, densities, widths, dtypes, runs)
            if density <= STRUCTURES[structure][1]]
    rows = [measure(point, names, rounds)
            for point in bench.progress(chosen(axes, points, seed), 'atlas')]
    report([{**row, **versions()} for row in rows], 'atlas', out)
    report_figure(figure(rows, names), 'atlas', out)
    slow = [row['auto / best'] for row in rows]
    print(f"'auto' took at most {max(slow):.2f} times the best, and more than 1.15 times at "
          f"{sum(ratio > 1.15 for ratio in slow)} of {len(rows)} points")


def chosen(points: list[Point], count: int, seed: int) -> list[Point]:
    """Return ``count`` of the points: first those of the setting ``BASE``, and then other points in
    random order."""
    base = [point for point in points if BASE.items() <= point._asdict().items()]
    others = [point for point in points if point not in base]
    random.Random(seed).shuffle(others)
    return [*base, *others][:count]


def measure(point: Point, backends: tuple[str, ...], rounds: int) -> dict:
    """Return a row with the milliseconds of each backend at one point, their spread, and the peak
    memory in MiB."""
    graph = STRUCTURES[point.structure][0](point.tokens, point.density)
    graph = graph.to(torch.get_default_device())
    shape, dtype = (graph.num_queries, point.heads, point.channels), getattr(torch, point.dtype)
    inputs = [torch.randn(shape, generator=bench.seeded()).to(dtype).requires_grad_()
              for _ in range(3)]

    def run(backend: str) -> Tensor | tuple[Tensor, ...]:
        if point.run == 'forward':
            with torch.no_grad():
                return edge_attention(*inputs, graph, backend=backend)
        return torch.autograd.grad(edge_attention(*inputs, graph, backend=backend).sum(), inputs)

    times = bench.all_times({name: lambda name=name: run(name) for name in (*backends, 'auto')},
                            rounds, seconds=4.)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    best = min(backends, key=medians.__getitem__)
    row = {**point._asdict(), 'edges': graph.num_edges, 'density': graph.density(),
           'fastest': best, 'auto / best': medians['auto'] / medians[best]}
    for name, values in times.items():
        low, high = np.quantile(values, [.25, .75])
        row |= {f'{name} ms': 1e3 * medians[name], f'{name} spread': (high - low) / medians[name]}
    return row | {f'{name} MiB': bench.peak_bytes(lambda name=name: run(name)) / 2**20
                  for name in backends}


def versions() -> dict[str, str]:
    """Return the name of the machine, the number of threads and the versions of packages, because
    times depend on them."""
    packages = {name: importlib.metadata.version(name) for name in ('torch', 'numba')}
    cpu = next((line.partition(': ')[2].strip() for line in
                Path('/proc/cpuinfo').read_text().splitlines() if line.startswith('model name')),
               platform.processor())
    is_cpu = torch.get_default_device().type == 'cpu'
    return {'machine': cpu if is_cpu else torch.cuda.get_device_name(),
            'threads': str(torch.get_num_threads()), **packages}


def figure(rows: list[dict], backends: tuple[str, ...]) -> Figure:
    """Draw the time of each backend divided by the time of 'auto', over density, with a panel for
    each structure."""
    names = list(dict.fromkeys(row['structure'] for row in rows))
    drawn = Figure(figsize=(3 * len(names), 4), layout='constrained')
    panels = drawn.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names):
        own = [row for row in rows if row['structure'] == name]
        for backend in backends:
            axes.loglog([row['density'] for row in own],
                        [row[f'{backend} ms'] / row['auto ms'] for row in own], '.', label=backend,
                        alpha=.7)
        axes.axhline(1, color='0.3')
        axes.set(title=name, xlabel='density')
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        bench.plain(axes)
    panels[0].set(ylabel="time over that of 'auto'")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center',
                 ncols=len(backends))
    return drawn


if __name__ == '__main__':
    bench.run_benchmark(main)
