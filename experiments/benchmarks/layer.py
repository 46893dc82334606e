"""A whole attention layer whose heads sample their graphs, beside full attention.

    python -m experiments.benchmarks.layer
    python -m experiments.benchmarks.layer --quick
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from jsonargparse.typing import PositiveInt
from torch import Tensor, nn

from experiments.benchmarks.measure import Density, interleave, log_log, progress, run_benchmark
from experiments.runs.tables import report
from graphattn.layers import GraphAttention
from graphattn.patterns import Full
from graphattn.sources import BlockModelSource, PatternSource


def main(
    nodes: list[PositiveInt] = (1024, 4096, 16384),
    densities: list[Density] = (0.02, 0.2),
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    clusters: PositiveInt = 128,
    rounds: PositiveInt = 3,
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Times a training step and inference of the layers.

    Args:
        nodes: Sequence lengths.
        densities: Densities that the sampled graphs are brought to.
        heads: Number of heads.
        channels: Width of a head.
        clusters: Clusters of the block models.
        rounds: Measurements of each case, of which the median counts.
        quick: One small setting that ends within a minute.
        out: Where table and figure go.
    """
    if quick:
        nodes, densities = (1024,), (0.02,)
    rows = []
    for n, density in progress(product(nodes, densities), 'layer'):
        rows += measure(n, density, heads, channels, clusters, rounds)
    report(rows, 'layer', out)
    chosen = [row for row in rows if row['density'] == min(densities)]
    names = list(dict.fromkeys(row['case'] for row in rows))
    log_log({name: ([row['n'] for row in chosen if row['case'] == name],
                    [row['train ms'] for row in chosen if row['case'] == name])
             for name in names}, 'layer', out, x='tokens', y='train step, ms',
            title=f'{heads} heads of {channels}, {clusters} clusters, {min(densities):.0%} dense')


def measure(n: int, density: float, heads: int, channels: int, clusters: int,
            rounds: int) -> list[dict]:
    """One row for each layer."""
    torch.manual_seed(0)
    x, ptr = torch.randn(n, heads * channels), torch.tensor([0, n])
    sampled = GraphAttention(heads * channels, heads,
                             BlockModelSource(heads, channels, clusters, exploration=0.))
    source = sampled.source
    bring_to_density(source, density)
    full = GraphAttention(heads * channels, heads, PatternSource(Full()))
    layers: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
        'sampled': (sampled, lambda: sampled(x, ptr)),
        'full attention': (full, lambda: full_attention(full, x)),
        'released algorithm': (sampled, lambda: released_algorithm(sampled, x, ptr)),
    }
    if n > 8192:  # it would hold several arrays of 4 * heads * n^2 bytes
        del layers['released algorithm']

    def train(layer: nn.Module, forward: Callable[[], Tensor]) -> None:
        torch.autograd.grad(forward().sum(), list(layer.parameters()), allow_unused=True)

    def infer(layer: nn.Module, forward: Callable[[], Tensor]) -> None:
        layer.eval()
        with torch.no_grad():
            forward()
        layer.train()

    times = {run.__name__: interleave({name: lambda c=case, run=run: run(*c)
                                       for name, case in layers.items()}, rounds)
             for run in (train, infer)}
    reached = sampled(x, ptr, return_graph=True)[1].density()
    return [{'n': n, 'density': density, 'density reached': reached, 'case': name,
             'train ms': 1e3 * times['train'][name], 'inference ms': 1e3 * times['infer'][name],
             'train / sampled': times['train'][name] / times['train']['sampled'],
             'inference / sampled': times['infer'][name] / times['infer']['sampled']}
            for name in layers]


def bring_to_density(source: BlockModelSource, density: float) -> None:
    """Memberships of sqrt(density) everywhere: with S summing to 1, p_ij = density."""
    with torch.no_grad():
        source.centroid.fill_(1.)
        source.weight2.zero_()
        logit = torch.logit(torch.tensor(density).sqrt())
        source.bias2.fill_(float(logit) / source.head_channels)


def full_attention(layer: GraphAttention, x: Tensor) -> Tensor:
    """The projections of ``layer`` around torch's dense attention."""
    query, key, value = (linear(x).unflatten(-1, (layer.heads, -1)).transpose(0, 1)[None]
                         for linear in (layer.lin_query, layer.lin_key, layer.lin_value))
    out = F.scaled_dot_product_attention(query, key, value)
    return layer.lin_out(out[0].transpose(0, 1).flatten(1))


def released_algorithm(layer: GraphAttention, x: Tensor, ptr: Tensor) -> Tensor:
    """What the authors' code computes: all probabilities, a dense Bernoulli draw, softmax over all
    keys, product with the mask, and normalisation (``DenseBernoulli`` is its estimator)."""
    query, key, value = (linear(x).unflatten(-1, (layer.heads, -1))
                         for linear in (layer.lin_query, layer.lin_key, layer.lin_value))
    model = layer.source.block_model(query, key, ptr)
    mixed = model.mixed_query().unflatten(0, (layer.heads, -1))
    prob = mixed @ model.key_factor.unflatten(0, (layer.heads, -1)).mT
    mask = DenseBernoulli.apply(prob)
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weight = (query @ key.mT / layer.head_channels**0.5).softmax(dim=-1) * mask
    out = F.normalize(weight, p=1, dim=-1) @ value
    return layer.lin_out(out.transpose(0, 1).flatten(1))


class DenseBernoulli(torch.autograd.Function):
    """A draw whose gradient passes, clipped, to the probabilities of what was drawn."""

    @staticmethod
    def forward(ctx, prob: Tensor) -> Tensor:
        mask = torch.bernoulli((prob + 0.01).clamp(0, 1))
        ctx.save_for_backward(mask)
        return mask

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return F.hardtanh(ctx.saved_tensors[0] * grad)


if __name__ == '__main__':
    run_benchmark(main)
