r"""Floating point operations of attention, step by step, for one head and one sequence.

Operations are counted as in :class:`torch.utils.flop_counter.FlopCounterMode`, which
:func:`counted` uses. A product of matrices ``[n, k]`` and ``[k, m]`` counts 2nkm, and elementwise
operations count nothing. In addition to torch's count, products along edges and the sampling of
edges count as their kernels compute them. Projections of queries, keys and values are excluded,
because all kinds of attention need the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from graphattn.ops.sample.cpu.thinning import Thinning
from graphattn.samplers import FactorModel

Steps = dict[str, float]


def along_edges(num_edges: int, width: int, hops: int = 1) -> Steps:
    """Return the operations of attention along a graph: the logits, and the sums of values."""
    return {'logits': 2. * num_edges * width, 'sums': 2. * hops * num_edges * width}


def block_model(n: int, width: int, clusters: int, drawn: Steps, num_edges: int,
                trains: bool = False) -> Steps:
    """Return the operations of a head that samples its graph (SBM-Transformer, Table 5)."""
    steps = {'memberships': 2. * (4 * n * width**2 + 2 * n * width * clusters),
             'mixing': 2. * clusters**2 * width, **drawn, **along_edges(num_edges, width)}
    return {**steps, 'probability of edges': 2. * num_edges * clusters} if trains else steps


@torch.no_grad()
def sampler(model: FactorModel) -> Steps:
    """Return the operations of :func:`graphattn.samplers.sample_bernoulli` on a CPU for
    ``model``."""
    sizes = model.num_keys, model.num_clusters
    mixed = 2. * model.num_queries * model.num_clusters**2
    thinning = Thinning(model)
    if not thinning.is_faster():
        return {'queries mixed': mixed,
                'probability of pairs': 2. * model.segments.num_pairs * model.num_clusters}
    # The sum and the maximum of each cluster over the keys, and the expected draws of each query.
    expected = 2. * sizes[0] * sizes[1] + 4. * model.num_queries * model.num_clusters
    return {'queries mixed': mixed, 'expected draws': expected,
            'probability of draws': 2. * float(thinning.num_draws.sum()) * model.num_clusters}


def algorithm_1(n: int, clusters: int) -> Steps:
    """Return the operations of :func:`graphattn.samplers.sample_fastrg` on a CPU, which computes no
    probabilities of pairs."""
    return {'queries mixed': 2. * n * clusters**2, 'expected draws': 4. * n * clusters}


def linear(n: int, width: int, *, normalised: bool = True) -> Steps:
    """Return the operations of linear attention in one head: the sum over keys, its product with
    the queries, and the normaliser."""
    steps = {'sum over keys': 2. * n * width**2, 'sums': 2. * n * width**2}
    return {**steps, 'normaliser': 2. * n * width} if normalised else steps


def linformer(n: int, width: int, rank: int) -> Steps:
    """Return the operations of Linformer in one head: the projections of keys and values to
    ``rank`` positions, and attention to these positions."""
    return {'projected keys and values': 4. * n * rank * width, **along_edges(n * rank, width)}


def performer(n: int, width: int, features: int) -> Steps:
    """Return the operations of Performer in one head: the features of queries and keys, and linear
    attention on these features."""
    return {'features': 4. * n * features * width, 'sum over keys': 2. * n * features * width,
            'sums': 2. * n * features * width, 'normaliser': 2. * n * features}


def reformer(n: int, width: int, rounds: int, chunk: int) -> Steps:
    """Return the operations of Reformer in one head: the hashes, and attention of each chunk to
    itself and to the chunk before."""
    chunks = -(-n // chunk)
    return {'hashes': 2. * rounds * n * width * -(-chunks // 2),
            **along_edges(rounds * 2 * chunks * chunk**2, width)}


def nystromformer(n: int, width: int, landmarks: int, kernel_size: int | None,
                  iterations: int) -> Steps:
    """Return the operations of Nystromformer in one head: three softmax kernels, an iterative
    pseudoinverse, and a convolution of the values."""
    convolution = {} if kernel_size is None else {'convolution': 2. * n * width * kernel_size}
    if n <= landmarks:
        return {**along_edges(n**2, width), **convolution}
    return {'between landmarks': 2. * landmarks**2 * width,
            'inverse': 8. * iterations * landmarks**3 + 2 * landmarks**2 * width,
            **along_edges(2 * n * landmarks, width), **convolution}


def counted(run: Callable[[], object]) -> int:
    """Return the number of operations that torch counts in a forward pass, ``run()``."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()
