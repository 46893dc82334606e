"""Folding of heads into nodes, if each head has its own graph, so that the same code computes
shared graphs and graphs of heads."""

from torch import Tensor

from graphattn._checks import check_sides, check_strided


def fold_heads(x: Tensor) -> Tensor:
    """Return ``[nodes, heads, channels]`` reshaped to ``[heads * nodes, 1, channels]``, beginning
    with head 0.

    The graph of folded nodes has its segments in the same order: every sequence of head 0, then
    every sequence of head 1 (``BipartiteGraph.batch([graph_of_head_0, graph_of_head_1, ...])``).

    Raises:
        TypeError: ``x`` is not a Tensor.
        ValueError: ``x`` does not have three dimensions.
    """
    _check_dimensions(x)
    return fold(x)


def fold(x: Tensor) -> Tensor:
    """Return the result of :func:`fold_heads` without checking arguments."""
    return x.transpose(0, 1).flatten(0, 1).unsqueeze(1)


def unfold_heads(x: Tensor, heads: int) -> Tensor:
    """Return ``[heads * nodes, 1, channels]`` reshaped back to ``[nodes, heads, channels]``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``x`` has another shape, or ``heads`` does not divide its first dimension.
    """
    _check_dimensions(x)
    check_sides(heads=heads)
    if x.size(1) != 1 or x.size(0) % heads:
        raise ValueError(f"'x' must have shape [{heads} * nodes, 1, channels] (got shape "
                         f"{tuple(x.shape)})")
    return unfold(x, heads)


def unfold(x: Tensor, heads: int) -> Tensor:
    """Return the result of :func:`unfold_heads` without checking arguments."""
    return x.reshape(heads, x.size(0) // heads, x.size(2)).transpose(0, 1)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Return keys or values ``[nodes, num_kv_heads, channels]`` as ``[nodes, heads, channels]``,
    where each head is repeated for the heads of queries that share it."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)


def _check_dimensions(x: Tensor) -> None:
    check_strided('x', x)
    if x.dim() != 3:
        raise ValueError(f"'x' must have shape [nodes, heads, channels] (got shape "
                         f"{tuple(x.shape)})")
