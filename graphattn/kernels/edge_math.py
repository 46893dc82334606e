"""Arithmetic on edges, for whoever forms weights."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.kernels.backend import LogitTerms


def edge_logit(dot: Tensor, terms: LogitTerms) -> Tensor:
    """``gate * dot * scale + bias``, ``[num_edges, heads]``."""
    logit = dot * terms.scale
    if terms.gate is not None:
        logit = logit * terms.gate
    return logit if terms.bias is None else logit + terms.bias


def edge_softmax(logit: Tensor, query: Tensor, num_queries: int) -> Tensor:
    """Softmax of the logits over the edges of each query.

    Args:
        logit (Tensor): ``[num_edges, heads]``.
        query (Tensor): The query of each edge in any order, int64 ``[num_edges]``.
        num_queries (int): Number of queries.

    Returns:
        Tensor ``[num_edges, heads]``; 0 on the edges of a query whose logits are all ``-inf``.
    """
    high = logit.detach().new_full((num_queries, logit.size(1)), -torch.inf)
    high = high.scatter_reduce(0, query.unsqueeze(1).expand_as(logit), logit.detach(), 'amax')
    high = torch.where(high == -torch.inf, 0., high)  # else -inf less -inf
    weight = (logit - high[query]).exp()
    total = weight.new_zeros(num_queries, weight.size(1)).index_add(0, query, weight)
    return weight / torch.where(total == 0, 1., total)[query]


def restart(message: Tensor, start: Tensor, teleport: Tensor) -> Tensor:
    """``(1 - teleport) * message + teleport * start``: one hop of diffusion."""
    # The mask keeps a start that is not finite out of what never returns to it.
    return torch.where(teleport == 0, message, torch.lerp(message, start, teleport))
