"""Times of attention with several hops: the compiled kernel, compared with PyG's gather and
scatter.

    python -m experiments.benchmarks.diffusion
    python -m experiments.benchmarks.diffusion --quick
"""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from torch_geometric.utils import scatter, softmax

from experiments.benchmarks import measure as bench
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.patterns import RandomKeys

TELEPORT = 0.1  # Diffuser's


@bench.benchmark(nodes=(1024,), densities=(0.02,), hops=(1, 5), rounds=3)
def main(
    nodes: list[PositiveInt] = (1024, 4096),
    densities: list[bench.Density] = (0.01, 0.09),
    hops: list[PositiveInt] = (1, 2, 5, 10),
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    rounds: PositiveInt = 5,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time inference and a training step of attention with several hops. All implementations are
    timed alternately.

    Args:
        nodes: Sequence lengths.
        densities: Fractions of all pairs that are edges.
        hops: Numbers of hops.
    """
    rows = []
    for n, density in bench.progress(product(nodes, densities), 'diffusion'):
        graph = RandomKeys(max(1, round(density * n))).build(n, seed=0)
        for number in hops:
            rows += measure(graph, number, heads, channels, rounds)
    report(rows, 'diffusion', out)


def measure(graph: BipartiteGraph, hops: int, heads: int, channels: int,
            rounds: int) -> list[dict]:
    """Time each implementation of diffusion along a graph with ``hops`` hops, and attention with
    one hop."""
    forwards, inputs = cases(graph, hops, heads, channels)
    times = bench.times_of_passes(forwards, inputs, rounds)
    return [{'n': graph.num_queries, 'density': graph.density(), 'hops': hops, 'case': name,
             'train ms': 1e3 * times['train'][name], 'inference ms': 1e3 * times['infer'][name],
             'train / one hop, fused': times['train'][name] / times['train']['one hop, fused'],
             'inference / one hop, fused':
                 times['infer'][name] / times['infer']['one hop, fused'],
             'saved MiB': bench.saved_bytes(forward) / 2**20}
            for name, forward in forwards.items()]


def cases(graph: BipartiteGraph, hops: int, heads: int,
          channels: int) -> tuple[dict[str, Callable[[], Tensor]], list[Tensor]]:
    """Return the implementations of diffusion to compare, by name, and the tensors whose gradients
    a training step computes."""
    torch.manual_seed(0)
    query, key, value = inputs = [torch.randn(graph.num_queries, heads, channels,
                                              requires_grad=True) for _ in range(3)]
    key_j, query_i = graph.edge_index.as_tensor().clone()

    def diffuse(backend: str) -> Tensor:
        return edge_attention(query, key, value, graph, hops=hops, teleport=TELEPORT,
                              backend=backend)

    def gather_scatter() -> Tensor:
        logit = (query[query_i] * key[key_j]).sum(-1) / channels**0.5
        alpha = softmax(logit, query_i, num_nodes=graph.num_queries).unsqueeze(-1)
        z = value
        for _ in range(hops):
            message = scatter(alpha * z[key_j], query_i, dim_size=graph.num_queries)
            z = (1 - TELEPORT) * message + TELEPORT * value
        return z

    backends = bench.SPARSE[graph.device.type]
    return {**{name: lambda name=name: diffuse(name) for name in backends},
            'PyG gather-scatter': gather_scatter,
            'one hop, fused': lambda: edge_attention(query, key, value, graph,
                                                     backend=backends[-1])}, inputs


if __name__ == '__main__':
    bench.run_benchmark(main)
