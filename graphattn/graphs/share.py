"""Ranges of tokens for several processes that share a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn._checks import check_kind, check_ptr, check_size
from graphattn._tensors import host_copy
from graphattn.graphs.graph import BipartiteGraph

__all__ = ['share']


def share(ptr: Tensor, graph: BipartiteGraph | None, processes: int) -> list[int]:
    """Divide the tokens of a batch into ranges, one for each process.

    Args:
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        graph (BipartiteGraph, optional): The graph of the whole batch, shared by all heads or with
            heads folded into nodes. With a graph, the numbers of edges in two ranges differ by
            about the edges of one token. Without a graph, ranges have about the same number of
            tokens.
        processes (int): Number of processes.

    Returns:
        list of int: Where the range of each process begins, and the end of the last. Every range
        has at least one token if there are enough tokens.

    Raises:
        TypeError, ValueError: An argument is of the wrong type, or ``graph`` has other queries.

    Example:
        >>> import torch
        >>> from graphattn.distributed import share
        >>> from graphattn.patterns import Causal
        >>> share(torch.tensor([0, 100]), Causal().build(100), 2)
        [0, 71, 100]
    """
    check_kind('ptr', ptr, Tensor)
    check_ptr('ptr', ptr, None, ptr.device)
    check_size('processes', processes, at_least=1)
    num_tokens = int(ptr[-1])
    if graph is None:
        return [num_tokens * rank // processes for rank in range(processes + 1)]
    check_kind('graph', graph, BipartiteGraph)
    if num_tokens == 0 or graph.num_queries % num_tokens > 0:
        raise ValueError(f"'graph' must have {num_tokens} queries, one for each token of 'ptr', or "
                         f"a multiple of {num_tokens} with all tokens repeated for each head (got "
                         f"{graph.num_queries} queries); build 'graph' for the sequences of 'ptr'")
    degree = host_copy(graph.csr[0]).diff().view(-1, num_tokens).sum(0)
    goals = degree.sum() * torch.arange(1, processes, dtype=torch.double) / processes
    # A boundary may cut the edges of a token; the token goes to the process with most of them.
    inner = torch.searchsorted(degree.cumsum(0) - degree.double() / 2, goals)
    first, last = torch.arange(1, processes), num_tokens - processes + torch.arange(1, processes)
    return [0, *inner.clamp(min=first).clamp(max=last.clamp(min=0)).tolist(), num_tokens]
