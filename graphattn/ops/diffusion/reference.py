"""Diffusion by its definition: the recursion over hops."""

from collections.abc import Callable

from torch import Tensor

from graphattn.ops.edge_math import restart


def diffuse(one_hop: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Tensor,
            teleport: Tensor) -> Tensor:
    """Return ``Z_K``, where ``Z_0 = V`` and ``Z_{k+1} = (1 - t) A Z_k + t V``.

    A walk begins at the query and ends after k hops with probability ``teleport[k]``. Its first hop
    is the last of the recursion.

    Args:
        one_hop (Callable): ``(weight, Z)`` to ``A Z``, the weighted sums of values.
        weight (Tensor): The weights A of the edges.
        value (Tensor): V, ``[num_tokens, heads, channels]``.
        teleport (Tensor): t of every hop, ``[hops, ...]``, each broadcastable to ``value``.
    """
    z = value
    for t in reversed(teleport.unbind()):
        z = restart(one_hop(weight, z), value, t)
    return z
