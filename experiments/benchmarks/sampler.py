"""Times of sampling a graph from a block model, and of the probabilities of its edges.

    python -m experiments.benchmarks.layer sampler
    python -m experiments.benchmarks.layer sampler --quick
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt

from experiments.benchmarks.measure import (
    Density,
    benchmark,
    interleave,
    log_log,
    progress,
    seeded,
)
from experiments.runs.tables import report
from graphattn.functional import edge_probability
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg

SAMPLERS = {'fastrg': sample_fastrg, 'bernoulli': sample_bernoulli}


@benchmark(nodes=(1024,), densities=(0.02, 0.25), rounds=3)
def main(
    nodes: list[PositiveInt] = (1024, 4096, 16384),
    densities: list[Density] = (0.005, 0.02, 0.1, 0.25),
    clusters: PositiveInt = 128,
    rounds: PositiveInt = 5,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time both samplers, and the product over all pairs of tokens that they avoid.

    Args:
        nodes: Numbers of tokens; a graph has as many queries as keys.
        densities: Expected fractions of all pairs that are edges.
        clusters: Number of clusters of the block model.
    """
    rows = []
    for n, density in progress(product(nodes, densities), 'sampler'):
        rows += measure(n, density, clusters, rounds)
    report(rows, 'sampler', out)
    largest = [row for row in rows if row['n'] == max(nodes)]
    names = list(dict.fromkeys(row['case'] for row in rows))
    log_log({name: ([row['density'] for row in largest if row['case'] == name],
                    [row['ms'] for row in largest if row['case'] == name]) for name in names},
            'sampler', out, title=f'{max(nodes)} tokens, {clusters} clusters', x='density', y='ms')


def measure(n: int, density: float, clusters: int, rounds: int) -> list[dict]:
    """Return rows with the times of each sampler, of the probabilities p_ij of the sampled edges,
    and of the probabilities of all pairs."""
    model = block_model(n, density, clusters)
    factors = model.query_factor, model.mixing, model.key_factor
    edges = {name: sample(model) for name, sample in SAMPLERS.items()}

    # Each case has its own model, as each training step has, because a model caches products.
    def fastrg_with_prob() -> None:
        with torch.no_grad():
            model = FactorModel(*factors)
            edge_probability(model, sample_fastrg(model))

    def gates() -> None:
        edge_prob = edge_probability(FactorModel(*factors), edges['bernoulli'])
        torch.autograd.grad(edge_prob.sum(), factors)

    dense = (model.mixed_query().detach(), model.key_factor.detach())
    cases = {
        **{name: lambda sample=sample: sample(FactorModel(*factors))
           for name, sample in SAMPLERS.items()},
        'fastrg and p_ij': fastrg_with_prob,
        'p_ij, forward and backward': gates,
        'dense product': lambda: dense[0] @ dense[1].t(),
        'dense product and Bernoulli': lambda: torch.bernoulli(dense[0] @ dense[1].t()),
    }
    times = interleave(cases, rounds)
    drawn = {name: graph.num_edges for name, graph in edges.items()}
    drawn |= {'fastrg and p_ij': drawn['fastrg'], 'p_ij, forward and backward': drawn['bernoulli']}
    threads = torch.get_num_threads() if model.device.type == 'cpu' else 1  # a GPU is one core
    budget = 1.3 * times['dense product'] + 2e-9 * n**2 / threads
    return [{'n': n, 'density': density, 'case': name, 'ms': 1e3 * seconds,
             'ns per edge and core': 1e9 * seconds * threads / drawn[name] if name in drawn
             else None,
             'ns per pair and core': 1e9 * seconds * threads / n**2,
             'times dense product': seconds / times['dense product'],
             'of 1.3 products + 2 ns per pair and core': seconds / budget}
            for name, seconds in times.items()]


def block_model(n: int, density: float, clusters: int) -> FactorModel:
    """Return a random FactorModel whose graphs have the expected density ``density``."""
    generator = seeded()
    query, key = torch.rand(2, n, clusters, generator=generator)
    mixing = torch.rand(clusters, clusters, generator=generator).square()
    mixing *= density * n**2 / float(FactorModel(query, mixing, key).expected_edges())
    return FactorModel(*(x.requires_grad_() for x in (query, mixing, key)))
