"""The definition of random graphs: Bernoulli trials for a dense matrix of probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.factor_model import FactorModel

# By distribution: the probability that a pair is an edge, as a function of p_ij + exploration. In
# the Poisson distribution, p_ij + exploration is the mean number of draws of the pair, and repeated
# draws merge.
DISTRIBUTIONS = {
    'bernoulli': lambda rate: rate.clamp(max=1),
    'poisson': lambda rate: -torch.expm1(-rate),
}


def edge_probabilities(model: FactorModel, distribution: str) -> Tensor:
    """Return the probability of each pair, ``[num_queries, num_keys]``, 0 outside segments."""
    return DISTRIBUTIONS[distribution](model.expectation())


def sample(model: FactorModel, distribution: str, generator: torch.Generator) -> BipartiteGraph:
    """Return a graph in which each pair is an edge with its probability, independently."""
    prob = edge_probabilities(model, distribution)
    is_edge = torch.rand(prob.shape, dtype=prob.dtype, generator=generator) < prob
    query, key = is_edge.nonzero().unbind(1)
    return BipartiteGraph.from_pairs(query * model.num_keys + key, model.num_queries,
                                     model.num_keys, query_ptr=model.query_ptr,
                                     key_ptr=model.key_ptr)
