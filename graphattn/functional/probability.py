"""Probabilities of the edges of a graph under a random model."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn._checks import check_floating, check_has_numbers, check_on, check_shape
from graphattn._tensors import without_autocast
from graphattn.functional.choose import choose_sparse
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend
from graphattn.ops.sample.factor_model import FactorModel


def edge_probability(model: FactorModel, graph: BipartiteGraph, *,
                     known: Tensor | None = None) -> Tensor:
    r"""Return the differentiable probability of each edge under a factor model.

    .. math:: p_{ij} = \hat{Q}_i \, \hat{S} \, \hat{K}_j^\top

    Only the probabilities of edges are computed, in O(edges x clusters) time (SBM-Transformer, Sec.
    4.1). Memory is O(edges + nodes x clusters), except for the backend ``'gather'``. They do not
    include exploration, a constant that the model adds when edges are drawn. The estimator
    :func:`graphattn.samplers.straight_through` turns the probabilities into a gate or bias.

    Args:
        model (FactorModel): The model that the edges were drawn from. It must have the segments of
            the graph.
        graph (BipartiteGraph): Any edges inside the segments of the model.
        known (Tensor, optional): The probabilities, if they are known, ``[num_edges]`` of the dtype
            of the model. They are then not computed again, and gradients still reach the model.

    Returns:
        Tensor ``[num_edges]`` of the dtype of the model's factors, float32 at least.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Model and graph have different segments or devices, or ``known`` has another
            shape or device.
    """
    if not isinstance(model, FactorModel) or not isinstance(graph, BipartiteGraph):
        raise TypeError(f"'model' and 'graph' must be a FactorModel and a BipartiteGraph (got "
                        f"{type(model).__name__} and {type(graph).__name__})")
    graph.check_unchanged()
    if model.device != graph.device:
        raise ValueError(f"'model' must be on {graph.device}, the device of 'graph' (got "
                         f"{model.device}); move 'model' or 'graph' to the same device")
    for name, ours, theirs in zip(('query_ptr', 'key_ptr'), model.segments.ptrs,
                                  graph.segments.ptrs):
        check_has_numbers(name, ours)
        if ours is not theirs and not torch.equal(ours, theirs):
            raise ValueError(f"'model' and 'graph' must have the same segments (got {name} "
                             f"{ours.tolist()} of 'model' and {theirs.tolist()} of 'graph')")
    if known is not None:
        check_floating(known=known)
        check_shape('known', known, (graph.num_edges,), ', one probability for each edge')
        check_on('known', known, graph.device, 'the graph')
    return probability_of_edges(model, graph, known)


def probability_of_edges(model: FactorModel, graph: BipartiteGraph,
                         known: Tensor | None = None) -> Tensor:
    # edge_probability without checks
    kernel = choose_sparse(model.device, model.num_clusters)
    with without_autocast(model.device):
        if known is not None and kernel.edge_dot_grads is not None:
            with torch.no_grad():
                mixed_query = model.mixed_query()
            return _KnownProbability.apply(model.query_factor, model.mixing, model.key_factor,
                                           mixed_query, known, graph, kernel)
        query = model.mixed_query()
        key = model.key_factor.to(query.dtype)
        return kernel.edge_dot(query.unsqueeze(1), key.unsqueeze(1), graph).squeeze(1)


class _KnownProbability(torch.autograd.Function):
    # gradients of known probabilities pass to the factors of the model
    @staticmethod
    def forward(ctx, query_factor: Tensor, mixing: Tensor, key_factor: Tensor, mixed_query: Tensor,
                known: Tensor, graph: BipartiteGraph, kernel: Backend) -> Tensor:
        ctx.save_for_backward(query_factor, mixing, key_factor, mixed_query)
        ctx.graph, ctx.kernel = graph, kernel
        return known.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        query_factor, mixing, key_factor, mixed_query = ctx.saved_tensors
        dtype, num_clusters = mixed_query.dtype, mixing.size(-1)
        grad_mixed, grad_key = (grad.squeeze(1) for grad in ctx.kernel.edge_dot_grads(
            grad.unsqueeze(1), mixed_query.unsqueeze(1), key_factor.to(dtype).unsqueeze(1),
            ctx.graph))
        matrix = mixing.to(dtype).reshape(-1, num_clusters, num_clusters)
        query, grad_mixed = (x.reshape(len(matrix), -1, num_clusters)
                             for x in (query_factor.to(dtype), grad_mixed))
        return ((grad_mixed @ matrix.mT).reshape(query_factor.shape).to(query_factor.dtype),
                (query.mT @ grad_mixed).reshape(mixing.shape).to(mixing.dtype),
                grad_key.to(key_factor.dtype), None, None, None, None)
