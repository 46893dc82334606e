"""Times of attention along random edges or a pattern: all backends, SDPA, FlexAttention and PyG.

    python -m experiments.benchmarks.attention
    python -m experiments.benchmarks.attention --quick
    python -m experiments.benchmarks.attention --only '["full SDPA", "masked SDPA", numba]'
    python -m experiments.benchmarks.attention --device cuda --dtype bfloat16 --heads 16
    python -m experiments.benchmarks.attention --device cuda --pattern 'SlidingWindow(64)'
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch_geometric.nn import TransformerConv
from torch_geometric.utils import scatter, softmax

from experiments.benchmarks import measure as bench
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.patterns import RandomKeys, parse


@bench.benchmark(nodes=(512,), densities=(0.02, 0.2), channels=(32,), rounds=3)
def main(
    nodes: list[PositiveInt] = (4096,),
    densities: list[bench.Density] = (0.002, 0.01, 0.05, 0.1, 0.2),
    pattern: str | None = None,
    channels: list[PositiveInt] = (32,),
    heads: PositiveInt = 4,
    rounds: PositiveInt = 5,
    only: list[str] | None = None,
    device: str = 'cpu',
    dtype: Literal['float32', 'bfloat16', 'float16'] = 'float32',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time the forward pass alone, and forward with backward, in one interleaved run.

    PyG's messages take gigabytes and slow down the case that runs after them, so ``only`` can
    exclude them.

    Args:
        nodes: Numbers of tokens; a graph has as many queries as keys.
        densities: Fractions of all pairs that are edges. Edges are drawn uniformly.
        pattern: A pattern to use instead of random edges. Its edges lie in fewer tiles.
        channels: Widths of a head.
        only: Names of the backends, and of functions of other libraries, to time; all if omitted.
        dtype: Dtype of queries, keys and values.
    """
    rows = []
    settings = product(nodes, channels, [None] if pattern else densities)
    for n, width, density in bench.progress(settings, 'attention'):
        edges = parse(pattern) if pattern else RandomKeys(max(1, round(density * n)))
        graph = edges.build(n, seed=0)
        rows += measure(graph, width, heads, rounds, only, getattr(torch, dtype))
    report(rows, 'attention', out)


def measure(graph: BipartiteGraph, width: int, heads: int, rounds: int, only: list[str] | None,
            dtype: torch.dtype = torch.float32) -> list[dict]:
    """Time attention along a graph, and return a row of times for each backend and for each
    attention function of other libraries."""
    forwards, inputs = cases(graph, heads, width, dtype)
    unknown = sorted(set(only or ()) - set(forwards))
    if unknown:
        raise ValueError(f"'only' must contain only cases from {[*forwards]} (got {unknown})")
    forwards = {name: forwards[name] for name in dict.fromkeys([*(only or forwards), 'auto'])}
    times = bench.times_of_passes(forwards, inputs, rounds)
    baseline = times['train']['auto']
    return [{'n': graph.num_queries, 'channels': width, 'density': graph.density(), 'case': name,
             'forward ms': 1e3 * times['infer'][name],
             'forward+backward ms': 1e3 * times['train'][name],
             'times auto': times['train'][name] / baseline,
             'saved MiB': bench.saved_bytes(forward) / 2**20}
            for name, forward in forwards.items() if math.isfinite(times['train'][name])]


def cases(graph: BipartiteGraph, heads: int, width: int,
          dtype: torch.dtype) -> tuple[dict[str, Callable[[], Tensor]], list[Tensor]]:
    """Return the attention functions to compare, by name, and the tensors whose gradients a
    training step computes."""
    n, device = graph.num_queries, graph.device
    query, key, value = inputs = [
        torch.randn(n, heads, width, device=device, dtype=dtype, requires_grad=True)
        for _ in range(3)]
    edge_index = graph.edge_index.as_tensor().clone()
    conv = TransformerConv(heads * width, width, heads, root_weight=False).to(device, dtype)
    mask = cache(graph.to_mask)  # a mask takes n^2 bytes, so it is made on demand

    def gather_scatter() -> Tensor:
        key_j, query_i = edge_index
        logit = (query[query_i] * key[key_j]).sum(-1) / width**0.5
        alpha = softmax(logit, query_i, num_nodes=n)
        return scatter(alpha.unsqueeze(-1) * value[key_j], query_i, dim_size=n)

    forwards = {
        'full SDPA': lambda: bench.sdpa(*inputs),
        'masked SDPA': lambda: bench.sdpa(*inputs, mask()),
        'PyG gather-scatter': gather_scatter,
        'PyG TransformerConv': lambda: conv(query.flatten(1), edge_index),
        **{name: lambda name=name: edge_attention(query, key, value, graph, backend=name)
           for name in (*bench.SPARSE[device.type], 'auto')},
    }
    if device.type == 'cuda':
        forwards['compiled PyG gather-scatter'] = torch.compile(gather_scatter)
        compiled, tiles = torch.compile(flex_attention), graph.to_block_mask(is_compact=True)
        forwards['FlexAttention'] = lambda: compiled(
            *(x.transpose(0, 1)[None] for x in inputs), block_mask=tiles)
    return forwards, inputs


if __name__ == '__main__':
    bench.run_benchmark(main, modes=('scaling', 'windows'))
