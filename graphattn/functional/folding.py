"""Folding of heads into nodes: if each head has its own graph, one joint graph contains a copy of
the nodes for each head, so the same code computes shared graphs and graphs of heads."""

from torch import Tensor

from graphattn._checks import check_shape, check_sides, check_strided


def fold_heads(x: Tensor) -> Tensor:
    """Return vectors ``[nodes, heads, channels]`` as ``[heads * nodes, 1, channels]``: first all
    nodes of head 0, then all nodes of head 1, and so on.

    The segments of the joint graph must have the same order: all sequences of head 0, then all
    sequences of head 1 (``BipartiteGraph.batch([graph_of_head_0, graph_of_head_1, ...])``).

    Raises:
        TypeError: ``x`` is not a Tensor.
        ValueError: ``x`` does not have three dimensions.
    """
    _check_dimensions(x)
    return fold(x, x.size(1))


def fold(x: Tensor, heads: int) -> Tensor:
    # fold_heads without checks, after repetition of the heads that queries share
    x = x if x.size(1) == heads else repeat_heads(x, heads)
    return x.transpose(0, 1).flatten(0, 1).unsqueeze(1)


def unfold_heads(x: Tensor, heads: int) -> Tensor:
    """Return vectors ``[heads * nodes, 1, channels]`` as ``[nodes, heads, channels]``, the inverse
    of :func:`fold_heads`.

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
    # unfold_heads without checks
    return x.reshape(heads, x.size(0) // heads, x.size(2)).transpose(0, 1)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Return keys or values with each head repeated for the heads of queries that share it."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)


def _check_dimensions(x: Tensor) -> None:
    check_strided('x', x)
    check_shape('x', x, ('nodes', 'heads', 'channels'))
