"""Heads that own a graph each become nodes, so that one code path serves both kinds of head."""

from torch import Tensor


def fold_heads(x: Tensor) -> Tensor:
    """``[nodes, heads, channels]`` to ``[heads * nodes, 1, channels]``, the first head first.

    The graph of folded nodes holds the blocks in the same order: every sequence of head 0, then
    every sequence of head 1 (``BipartiteGraph.batch([graph_of_head_0, graph_of_head_1, ...])``).
    """
    return x.transpose(0, 1).reshape(-1, 1, x.size(2))


def unfold_heads(x: Tensor, heads: int) -> Tensor:
    """``[heads * nodes, 1, channels]`` back to ``[nodes, heads, channels]``."""
    return x.reshape(heads, -1, x.size(2)).transpose(0, 1)
