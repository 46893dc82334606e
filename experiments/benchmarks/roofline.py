"""Lower bounds for the times of the GPU kernels, computed from memory traffic and instructions.

    python -m experiments.benchmarks.roofline
    python -m experiments.benchmarks.roofline --quick

Nothing is measured here. To measure the kernels on a GPU, run python -m experiments.benchmarks.gpu
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from unittest.mock import patch

import torch
from jsonargparse.typing import PositiveInt

from experiments.benchmarks.machine_code import (
    TERMS,
    Launch,
    compiled,
    distinct,
    drawing,
    environment_compiles,
    launches,
    name_of,
    operators,
    sampling,
)
from experiments.benchmarks.measure import benchmark, progress, run_benchmark
from experiments.runs.tables import report
from graphattn.ops.attention import triton_tiles as attention_tiles
from graphattn.ops.sample.triton.draws import MAX_EXPECTED
from graphattn.ops.triton import tiles

# Rates of an H200 per second: bytes of memory traffic; instructions of its 132 processors, each of
# which issues four instructions at 1.75 GHz; and operations of flash attention on its tensor cores.
BYTES_PER_SECOND, INSTRUCTIONS_PER_SECOND, FLOPS_PER_SECOND = 4.8e12, 132 * 4 * 1.75e9, 500e12
REGISTERS = 65536  # per processor
# Loads of each kernel per edge and head. VECTORS counts the vectors: of keys and values, or of
# queries and gradients. BESIDE counts the bytes of everything else: the index of the node,
# statistics and weights.
VECTORS = {'attend_rows': 2, 'grads_of_queries': 2, 'grads_of_keys': 2, 'dot_of_rows': 1,
           'sum_of_rows': 1, 'weigh_rows': 1, 'softmax_backward': 0}
BESIDE = {'attend_rows': 4, 'grads_of_queries': 4, 'grads_of_keys': 8 + 32, 'dot_of_rows': 8,
          'sum_of_rows': 8, 'weigh_rows': 8, 'softmax_backward': 20}
# Products of each kernel per edge and head: dot products of vectors, and weighted sums of vectors.
PRODUCTS = {'attend_rows': 2, 'grads_of_queries': 3, 'grads_of_keys': 4, 'dot_of_rows': 1,
            'sum_of_rows': 1, 'weigh_rows': 1, 'softmax_backward': 0}
# Bytes for sampling few edges. A sector is read at once. A share is read per key and cluster:
# factors three times and their sum in float64, integers, and the sums of the integers. An order is
# the cost per edge of ordering by key: four passes of torch's sort over 12 bytes, and a gather.
BYTES_OF_A_SECTOR, BYTES_OF_A_SHARE, BYTES_OF_AN_ORDER = 32, 52, 168
TILED = {'attend_tiles', 'grads_of_tiled_queries', 'grads_of_tiled_keys'}
SHAPES = {(16384, 41): '0.25 %', (16384, 164): '1 %', (16384, 819): '5 %',
          (131072, 64): '64 keys each'}
WIDTHS = 32, 64, 128, 256  # widths of dot products on edges: numbers of clusters of block models
LAYERS = [(4096, 128), (8192, 128), *((16384, width) for width in WIDTHS), (32768, 128)]


@benchmark()
def main(
    dtype: Literal['bfloat16', 'float16', 'float32'] = 'bfloat16',
    channels: PositiveInt = 64,
    heads: PositiveInt = 16,
    capability: PositiveInt = 90,
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Compile all kernels, and report their memory traffic and instructions per edge.

    Args:
        dtype: Dtype of queries, keys and values.
        heads: Number of heads.
        capability: Compute capability of the GPU; 90 is 9.0.
        quick: Whether to leave out bias, gate and dropout.
        out: The folder of the tables.
    """
    if not environment_compiles():
        raise ValueError("TRITON_INTERPRET must not be set, because this benchmark compiles the "
                         "kernels (got 1); unset TRITON_INTERPRET")
    rows = []
    for terms in TERMS[:1 if quick else None]:
        work = operators(getattr(torch, dtype), channels, terms, heads=heads)
        for (operator, name), launch in progress(distinct(work).items(), terms):
            code, kernel = compiled(launch, capability), name.split(' ')[0]
            if kernel not in VECTORS:
                continue
            of_node = launch.arguments.get('x', launch.arguments.get('key'))
            itemsize = 0 if of_node is None else of_node.element_size()
            # A softmax alone has no values.
            of_values = int(launch.arguments.get('VALUE_CHANNELS') == 0)
            size = (VECTORS[kernel] - of_values) * channels * itemsize + BESIDE[kernel]
            rows.append({
                'terms': terms, 'operator': operator, 'kernel': kernel, 'bytes/edge': size,
                'flops/edge': 2 * (PRODUCTS[kernel] - of_values) * channels,
                'instructions/edge': code.instructions_per_edge,
                'memory ps': 1e12 * size / BYTES_PER_SECOND,
                'instructions ps': 1e12 * code.instructions_per_edge / INSTRUCTIONS_PER_SECOND,
                'registers': code.registers, 'spilled': code.spilled, 'shared': code.shared,
                'warps/processor': min(32, REGISTERS // (32 * code.registers))})
    print('computed, not measured; of one head, to and from memory, none of it in a cache:')
    report(rows, 'roofline', out)
    print('computed, not measured; all heads:')
    report([against_dense(rows, n, degree, channels, heads) for n, degree in SHAPES],
           'roofline_shapes', out)
    if getattr(torch, dtype).itemsize == 2:
        print('computed, not measured; attention by rows and by tiles on tensor cores:')
        report([attention_by_tiles(getattr(torch, dtype), width, terms, capability)
                for terms in TERMS[:1 if quick else None]
                for width in attention_tiles.EDGES_OF_A_TILE], 'roofline_attention_tiles', out)
    print('computed, not measured; dot products on edges in float32, by rows and by tiles:')
    report([rows_against_tiles(width, capability) for width in WIDTHS], 'roofline_tiles', out)
    print('computed, not measured; a training step of a layer that draws its graphs:')
    report([against_full(rows, n, width, channels, capability) for n, width in LAYERS],
           'roofline_layers', out)


def against_dense(rows: list[dict], n: int, degree: int, channels: int, heads: int) -> dict:
    """Return a row with the minimum time of attention along a graph, and the time of unmasked flash
    attention."""
    edges, pairs = heads * n * degree, heads * n * n
    floor = {row['kernel']: max(row['memory ps'], row['instructions ps']) * 1e-12 * edges
             for row in rows if row['terms'] == TERMS[0]
             and row['operator'].startswith('edge_attention')}
    backward = floor['grads_of_queries'] + floor['grads_of_keys']
    # two products in the forward pass, and five in the backward pass
    dense = 4 * channels * pairs / FLOPS_PER_SECOND
    return {'tokens': n, 'density': SHAPES[n, degree], 'forward ms': 1e3 * floor['attend_rows'],
            'forward+backward ms': 1e3 * (floor['attend_rows'] + backward),
            'flash forward ms': 1e3 * dense, 'flash forward+backward ms': 3.5e3 * dense,
            'break-even density %': 100 * degree / n * 3.5 * dense
            / (floor['attend_rows'] + backward)}


def attention_by_tiles(dtype: torch.dtype, channels: int, terms: str, capability: int) -> dict:
    """Return a row with the time of attention per edge by rows, and per pair by tiles.

    Times are given for the forward pass alone, and for both passes. The last column is the number
    of edges in a tile at which rows and tiles take equal time.
    """
    started = [launch for operator, arguments in operators(dtype, channels, terms).items()
               if name_of(operator).startswith('edge_attention')
               for launch in launches(operator, arguments)]
    edge = [picoseconds(launch, capability) for launch in started
            if launch.kernel.__name__ in VECTORS]
    tiled = [launch for launch in started if launch.kernel.__name__ in TILED]
    pairs = tiled[0].edges_of_a_program
    pair = [1e12 * sum(compiled(launch, capability).around.values()) * launch.num_warps / pairs
            / INSTRUCTIONS_PER_SECOND for launch in tiled]
    return {'terms': terms, 'channels': channels, 'forward ps per edge': edge[0],
            'ps per pair': pair[0], 'forward+backward ps per edge': sum(edge),
            'forward+backward ps per pair': sum(pair),
            'edges of a tile when level': pairs * sum(pair) / sum(edge),
            'level at %': 100 * sum(pair) / sum(edge)}


def rows_against_tiles(channels: int, capability: int) -> dict:
    """Return a row with the time of dot products per edge by rows, and per pair by tiles.

    The last columns are the densities at which rows and tiles take equal time.
    """
    by_rows = dots(channels, 1.)
    edge, pair = ([picoseconds(launch, capability) for launch in launched]
                  for launched in (by_rows, dots(channels, 0.)))
    idle = sum(picoseconds(launch, capability, gathers=False) for launch in by_rows[1:])
    half_idle = edge[0] + (sum(edge[1:]) + idle) / 2
    return {'channels': channels, 'forward ps per edge': edge[0], 'ps per pair': pair[0],
            'backward ps per edge': sum(edge[1:]), 'without gradient': idle,
            'backward ps per pair': sum(pair[1:]),
            'break-even density %, forward': 100 * pair[0] / edge[0],
            'backward': 100 * sum(pair[1:]) / sum(edge[1:]), 'both': 100 * sum(pair) / sum(edge),
            'both, half without gradient': 100 * sum(pair) / half_idle}


def against_full(rows: list[dict], n: int, clusters: int, channels: int,
                 capability: int) -> dict:
    """Return a row with the times of a training step of a layer that samples its graphs exactly.

    Times are per pair and per edge, without projections. The row also has the densities at which
    the step takes as long as full attention: with trials of all pairs (negative if trials alone
    take longer), and with few sampled edges. With the default estimator, half of the edges have no
    gradient.
    """
    full = 14 * channels / FLOPS_PER_SECOND * 1e12
    tried = sum(picoseconds(launch, capability) for launch in sampling(torch.float32, clusters))
    listed = 1e12 * BYTES_OF_A_SHARE * clusters / n / BYTES_PER_SECOND
    *_, thinned = (launch for launch in drawing(torch.float32, clusters)
                   if launch.kernel.__name__ == 'draw_keys')
    draw, order = picoseconds_of_a_draw(thinned, n, capability), 1e12 * BYTES_OF_AN_ORDER
    attention = sum(max(row['memory ps'], row['instructions ps']) for row in rows
                    if row['terms'] == TERMS[0] and row['operator'].startswith('edge_attention'))
    dot = rows_against_tiles(clusters, capability)
    prob = (dot['backward ps per edge'] + dot['without gradient']) / 2
    edge = order / BYTES_PER_SECOND + attention + prob
    return {'tokens': n, 'clusters': clusters, 'full attention, ps per pair': full,
            'trials, ps per pair': tried, 'shares, ps per pair': listed,
            'draw, ps per edge': draw, 'order by key, ps per edge': order / BYTES_PER_SECOND,
            'attention, ps per edge': attention, 'gradient of p_ij, ps per edge': prob,
            'break-even density %, trials': 100 * (full - tried) / edge,
            'draws': 100 * (full - listed) / (edge + draw),
            'draws and trials level at %': 100 * (tried - listed) / draw}


def dots(channels: int, faster_above: float) -> list[Launch]:
    """Return the launches of dot products on edges and of their gradients, by queries and by
    keys."""
    with patch.object(tiles, 'FASTER_ABOVE', {channels: faster_above}):
        started = [launch for operator, arguments in operators(torch.float32, channels).items()
                   if name_of(operator).startswith('edge_dot')
                   for launch in launches(operator, arguments)]
    return [launch for launch in started if launch.kernel.__name__ != 'add_parts']


def picoseconds(launch: Launch, capability: int, *, gathers: bool = True) -> float:
    """Return the minimum time in picoseconds per edge, or per pair for kernels of tiles.

    Without ``gathers``, the vectors that an edge gathers are left out. The time of a tile covers
    the instructions of a program, and the turns of its longest loop over channels or for non-finite
    values.
    """
    code, kernel = compiled(launch, capability), launch.kernel.__name__
    if kernel in VECTORS:
        vectors = VECTORS[kernel] if gathers else 0
        itemsize = launch.arguments.get('x', launch.arguments.get('key')).element_size()
        size = itemsize * vectors * launch.arguments['CHANNELS'] + BESIDE[kernel]
        return 1e12 * max(size / BYTES_PER_SECOND,
                          code.instructions_per_edge / INSTRUCTIONS_PER_SECOND)
    depth, in_loop = launch.arguments.get('DEPTH'), sum(code.loop.values())
    width = launch.arguments.get('CHANNELS', launch.arguments.get('CLUSTERS'))
    turns = 0 if depth is None else -(-width // depth)
    instructions = code.instructions + (turns - 1) * in_loop
    return 1e12 * instructions / code.edges / INSTRUCTIONS_PER_SECOND


def picoseconds_of_a_draw(launch: Launch, num_keys: int, capability: int) -> float:
    """Return the minimum time of a thinned draw in picoseconds, among many draws of a row.

    It is the maximum of two times. One is the time of the instructions of a program and its loops,
    which bisect clusters (unrolled if there are few), double a step, bisect keys, and multiply some
    clusters at a time. The other is the time of reading the sectors for bisection.
    """
    code, arguments = compiled(launch, capability), launch.arguments
    steps = num_keys.bit_length()
    turns = (arguments['WIDTH'].bit_length() - 1, steps, steps,
             -(-arguments['CLUSTERS'] // arguments['DEPTH']))[-len(code.loops):]
    instructions = code.instructions + sum(
        (turn - 1) * sum(loop.values()) for turn, loop in zip(turns, code.loops))
    size = BYTES_OF_A_SECTOR * (steps + 2)
    return 1e12 * max(size / BYTES_PER_SECOND,
                      instructions / MAX_EXPECTED / INSTRUCTIONS_PER_SECOND)


if __name__ == '__main__':
    run_benchmark(main)
