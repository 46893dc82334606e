"""Times on a GPU: attention by rows, by short rows and by tiles, attention along anemoi's meshes,
layers that sample graphs, and samplers.

    python -m experiments.benchmarks.gpu
    python -m experiments.benchmarks.gpu --parts '[layers]'
    python -m experiments.benchmarks.gpu --parts '[tiles, sweep]' --block 128
    python -m experiments.benchmarks.gpu --quick --device cpu

The lower bound for attention is the time in which the same GPU copies the vectors that the edges
gather.
This command checks for memory errors: compute-sanitizer python -m pytest tests/ops/test_backends.py
-k on_a_gpu
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import torch
import triton.language as tl
from jsonargparse.typing import PositiveInt
from torch.profiler import ProfilerActivity, profile

from experiments.benchmarks import attention, meshes
from experiments.benchmarks.layer import bring_to_density, full_attention, train
from experiments.benchmarks.measure import benchmark, interleave, progress, run_benchmark, seeded
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.functional import edge_probability
from graphattn.layers import GraphAttention
from graphattn.ops.attention import triton_short_rows as short_rows
from graphattn.ops.attention import triton_tiles as attention_tiles
from graphattn.ops.triton import rows as rows_of_edges
from graphattn.ops.triton import tiles as plans
from graphattn.ops.weights import triton_tiles as tiles_of_sums
from graphattn.patterns import RandomKeys, parse
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg
from graphattn.sources import BlockModelSource

# Numbers of tokens and of keys per query: 0.25, 1 and 5 % of the pairs, and a long sequence.
SHAPES = (16384, 41), (16384, 164), (16384, 819), (131072, 64)
# Numbers of tokens, of keys per query and of heads.
SHORT_ROWS = ((16384, 4, 16), (16384, 16, 16), (131072, 8, 16), (131072, 8, 4), (131072, 64, 16),
              (262144, 16, 16))
LENGTHS, DENSITIES = (4096, 8192, 16384, 32768), (0.0025, 0.01, 0.02, 0.05)
CLUSTERS = 128
PATTERNS = ('SlidingWindow(64)', 'SlidingWindow(256)', 'SlidingWindow(64) | GlobalTokens(64)',
            'RandomBlocks(3, 64)', 'RandomKeys(204)', 'RandomKeys(1024)')
# Stages of the pipeline that loads tiles, and most registers of a thread.
STAGES, REGISTERS = (1, 2, 3, 4), (128, 168, 255)
# Masks and messages (edges x heads x channels) above these sizes would exceed a GPU's memory.
MAX_PAIRS, MAX_MESSAGES = 2**30, 2**34


@benchmark()
def main(
    heads: PositiveInt = 16,
    channels: PositiveInt = 64,
    dtype: Literal['float32', 'bfloat16', 'float16'] = 'bfloat16',
    rounds: PositiveInt = 20,
    parts: list[Literal['attention', 'rows', 'tiles', 'sweep', 'meshes', 'layers', 'profile',
                        'sampling']] = (
        'attention', 'rows', 'tiles', 'sweep', 'meshes', 'layers', 'profile', 'sampling'),
    block: Literal[64, 128] = 64,
    device: str = 'cuda',
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time attention, layers and samplers on a GPU, and write a table of medians for each part.

    Args:
        heads: Number of heads.
        dtype: Dtype of queries, keys and values. Layers run under autocast to this dtype.
        parts: The parts to measure. The table of a part is written when the part is finished.
        block: Number of rows of a tile.
        quick: Whether to use small sizes, which end within a minute.
    """
    shapes, grids, lengths, densities = SHAPES, meshes.MESHES, LENGTHS, DENSITIES
    # The last is what the sweep is about.
    patterns, rows = [*product((4096, 16384), PATTERNS), (16384, 'RandomKeys(819)')], SHORT_ROWS
    if quick:
        patterns, rows = [(256, PATTERNS[0])], [(256, 4, 2)]
        shapes, lengths, densities, heads, rounds = [(512, 8)], (256,), (0.05,), 2, 2
        grids = {'small': (64, 128, 8)}
    setting = heads, channels, getattr(torch, dtype), rounds
    set_block(block)
    drawn = [*product(lengths, densities)]
    cases = {
        'attention': [partial(of_attention, *shape, *setting) for shape in shapes],
        'rows': [partial(of_rows, *shape, *setting[1:]) for shape in rows],
        'tiles': [partial(of_tiles, n, pattern, *setting) for n, pattern in patterns],
        'sweep': [partial(of_sweep, *patterns[-1], stages, registers, *setting)
                  for stages, registers in product(STAGES, REGISTERS)],
        'meshes': [partial(meshes.measure, *grid, *setting) for grid in grids.items()],
        'layers': [partial(of_layers, *size, *setting) for size in drawn],
        'profile': [partial(of_profile, *size, *setting[:-1]) for size in drawn],
        'sampling': [partial(of_sampling, *size, rounds) for size in drawn]}
    for part in parts:
        report([row for case in progress(cases[part], part) for row in case()], f'gpu_{part}', out)


def of_attention(n: int, degree: int, heads: int, channels: int, dtype: torch.dtype,
                 rounds: int) -> list[dict]:
    """Time attention along random edges, and return the rows of the benchmark ``attention`` with
    two more columns."""
    graph = RandomKeys(degree).build(n, seed=0)
    left_out = {'PyG TransformerConv'}
    if n**2 > MAX_PAIRS:
        # random edges occur in all tiles, so tiles save nothing
        left_out |= {'masked SDPA', 'FlexAttention'}
    if graph.num_edges * heads * channels > MAX_MESSAGES:
        left_out |= {'PyG gather-scatter', 'compiled PyG gather-scatter'}
    names, _ = attention.cases(graph, heads, channels, dtype)
    rows = attention.measure(graph, channels, heads, rounds, [*names.keys() - left_out], dtype)
    # The floor: a copy of the vectors that an edge gathers, two of them, three times in forward and
    # backward.
    edges, gathered = graph.num_edges * heads, 2 * channels * dtype.itemsize
    floor = 3 * gathered * edges / bytes_per_second(rounds)
    for row in rows:
        seconds = 1e-3 * row['forward+backward ms']
        row['ps per edge'] = 1e12 * seconds / edges
        row['times floor'] = seconds / floor
    return rows


def of_rows(n: int, degree: int, heads: int, channels: int, dtype: torch.dtype,
            rounds: int) -> list[dict]:
    """Return a row with the times of two kinds of kernels along rows of edges: in one, a program
    computes one head of a row, and in the other, all heads of a row."""
    graph = RandomKeys(degree).build(n, seed=0)
    forwards, inputs = attention.cases(graph, heads, channels, dtype)

    def step(faster_below: float) -> None:
        with patch.object(short_rows, 'FASTER_BELOW', faster_below):
            torch.autograd.grad(forwards['auto']().sum(), inputs)

    times = interleave({'one head': partial(step, 0), 'all heads': partial(step, n)}, rounds)
    return [{'n': n, 'keys': degree, 'heads': heads,
             **{f'{way} ms': 1e3 * seconds for way, seconds in times.items()}}]


def of_tiles(n: int, pattern: str, heads: int, channels: int, dtype: torch.dtype,
             rounds: int) -> list[dict]:
    """Return a row with the times of attention along a pattern, of full attention and of others."""
    graph = parse(pattern).build(n, seed=0)
    forwards, inputs = attention.cases(graph, heads, channels, dtype)

    def step(name: str, edges_of_a_tile: dict[int, int]) -> None:
        with patch.object(attention_tiles, 'EDGES_OF_A_TILE', edges_of_a_tile):
            torch.autograd.grad(forwards[name]().sum(), inputs)

    level = attention_tiles.EDGES_OF_A_TILE
    by_rows, by_tiles = (dict.fromkeys(level, most) for most in (2**30, 8))
    others = {'full SDPA', 'FlexAttention'} | ({'masked SDPA'} if n**2 <= MAX_PAIRS else set())
    # On CPUs the first three are the same. A tile takes as long as ``edges of a tile`` by rows.
    ways = {'rows': ('auto', by_rows), 'tiles': ('auto', by_tiles), 'as chosen': ('auto', level),
            **{name: (name, level) for name in forwards if name in others}}
    times = interleave({way: partial(step, *of_way) for way, of_way in ways.items()}, rounds)
    row = {'n': n, 'pattern': pattern, 'density': graph.density(), 'block': plans.ROWS_OF_A_TILE,
           **{f'{way} ms': 1e3 * seconds for way, seconds in times.items()}}
    if graph.device.type == 'cuda':
        number = sum(plans.count(*order[:2], n, 8)[0].sum().item()
                     for order in (graph.csr, graph.csc)) / 2
        pairs = number * heads * plans.ROWS_OF_A_TILE * plans.COLUMNS
        row |= {'plan ms': 1e3 * interleave({'plan': partial(plan_anew, graph, heads)},
                                            rounds)['plan'],
                'ps per pair': 1e12 * times['tiles'] / pairs,
                'edges of a tile': times['tiles'] / number / times['rows'] * graph.num_edges}
    return [row]


def plan_anew(graph: BipartiteGraph, heads: int) -> None:
    for indptr, column in (graph.csr, graph.csc[:2]):
        plans.plan(indptr, column.clone(), graph.num_queries, heads, 8)


def of_sweep(n: int, pattern: str, stages: int, registers: int, heads: int, channels: int,
             dtype: torch.dtype, rounds: int) -> list[dict]:
    """Return a row with the time of attention by tiles with other constants of its kernels."""
    with (patch.object(attention_tiles, 'STAGES', stages),
          patch.object(attention_tiles, '_FEW_REGISTERS', registers)):
        row, = of_tiles(n, pattern, heads, channels, dtype, rounds)
    return [{'stages': stages, 'registers': registers, **row}]


def set_block(size: int) -> None:
    """Set the rows of a tile, before any kernel is compiled."""
    if size == plans.ROWS_OF_A_TILE:
        return
    rows_of_edges._OF_A_TILE = tl.constexpr(size)
    for module in (rows_of_edges, plans, attention_tiles):
        module.ROWS_OF_A_TILE = size


@cache
def bytes_per_second(rounds: int) -> float:
    """Return the bytes per second that the device reads and writes in a large copy, which exceeds
    its caches."""
    x = torch.empty(2**26)
    return 2 * x.nbytes / interleave({'copy': x.clone}, rounds)['copy']


def of_layers(n: int, density: float, heads: int, channels: int, dtype: torch.dtype,
              rounds: int) -> list[dict]:
    """Return rows with the time of a training step of a layer that samples its graphs, whose
    gradient of p_ij may go by tiles, the same by rows alone, and of one with full attention."""
    times = interleave(steps_of_layers(n, density, heads, channels, dtype), rounds)
    return [{'n': n, 'density': density,
             **{f'{name} ms': 1e3 * seconds for name, seconds in times.items()},
             'sampled / full': times['sampled'] / times['full'],
             'sampled / p_ij by rows': times['sampled'] / times['p_ij by rows']}]


def steps_of_layers(n: int, density: float, heads: int, channels: int,
                    dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    torch.manual_seed(0)
    source = BlockModelSource(heads, channels, CLUSTERS, exploration=0.)
    bring_to_density(source, density)
    layer = GraphAttention(heads * channels, heads, source)
    x = torch.randn(n, heads * channels)
    ptr = torch.tensor([0, n])

    def step(forward) -> None:
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float):
            train(layer, forward)

    def sampled() -> None:
        step(lambda: layer(x, ptr))

    def by_rows() -> None:
        with patch.object(tiles_of_sums, 'planned', lambda rows, x: None):
            sampled()

    return {'sampled': sampled, 'p_ij by rows': by_rows,
            'full': lambda: step(lambda: full_attention(layer, x))}


def of_profile(n: int, density: float, heads: int, channels: int,
               dtype: torch.dtype) -> list[dict]:
    """Return a row for each kernel and operation that takes a hundredth of a training step of a
    block-model layer, the most expensive first: how often it runs, and milliseconds of the device
    and of the host."""
    step = steps_of_layers(n, density, heads, channels, dtype)['sampled']
    for _ in range(3):
        step()
    has_gpu = torch.get_default_device().type == 'cuda'
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * has_gpu
    with profile(activities=activities) as profiled:
        step()
        if has_gpu:
            torch.cuda.synchronize()
    rows = [{'n': n, 'density': density, 'name': event.key[:60], 'times': event.count,
             'device ms': 1e-3 * event.self_device_time_total,
             'host ms': 1e-3 * event.self_cpu_time_total} for event in profiled.key_averages()]
    rows.sort(key=lambda row: -row['device ms'] - row['host ms'])
    least = sum(row['device ms'] + row['host ms'] for row in rows) / 100
    return [row for row in rows if row['device ms'] + row['host ms'] > least]


def of_sampling(n: int, density: float, rounds: int) -> list[dict]:
    """Return a row with the time of each sampler for the graph of one head, and with the time of
    the probabilities of its edges and their gradients."""
    model = block_model(n, density, CLUSTERS)
    factors = [x.detach().requires_grad_() for x in
               (model.query_factor, model.mixing, model.key_factor)]
    graph = sample_bernoulli(FactorModel(*factors))

    def gates() -> None:
        edge_prob = edge_probability(FactorModel(*factors), graph)
        torch.autograd.grad(edge_prob.sum(), factors)

    ways = [(sample, method) for sample, methods in (
        (sample_bernoulli, ('compare', 'thin', 'torch')), (sample_fastrg, ('compiled', 'torch')))
        for method in methods]
    cases = {f'{sample.__name__}, {method}':
             lambda sample=sample, method=method: sample(FactorModel(*factors), method=method)
             for sample, method in ways}
    cases['p_ij'] = gates
    times = interleave(cases, rounds)
    return [{'n': n, 'density': density, **{f'{name} ms': 1e3 * seconds for name, seconds in
                                            times.items()}}]


def block_model(n: int, density: float, clusters: int) -> FactorModel:
    """Return a random FactorModel whose graphs have the expected density ``density``."""
    generator = seeded()
    query, key = torch.rand(2, n, clusters, generator=generator)
    mixing = torch.rand(clusters, clusters, generator=generator).square()
    mixing *= density * n**2 / float(FactorModel(query, mixing, key).expected_edges())
    return FactorModel(*(x.requires_grad_() for x in (query, mixing, key)))


if __name__ == '__main__':
    run_benchmark(main)
