"""The definition of diffusion: the recursion over hops."""

from collections.abc import Callable

from torch import Tensor

from graphattn.ops.edge_math import restart


def diffuse(one_hop: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Tensor,
            teleport: Tensor) -> Tensor:
    """Return the values ``Z_K`` after K hops of ``Z_{k+1} = (1 - t) A Z_k + t V`` from ``Z_0 = V``.

    This is the expected value at the end of a random walk from the query. A walk that has made k
    hops ends with probability ``teleport[k]``. The first hop of the walk is the last step of the
    recursion, so the recursion uses the teleports in reverse order.

    Args:
        one_hop (Callable): Maps ``(weight, Z)`` to ``A Z``, the weighted sums of values.
        weight (Tensor): The weights A of the edges.
        value (Tensor): V, ``[num_tokens, heads, channels]``.
        teleport (Tensor): The teleport t of every hop, ``[hops, ...]``. The entry of a hop is
            broadcastable to ``value``.
    """
    z = value
    for t in reversed(teleport.unbind()):
        z = restart(one_hop(weight, z), value, t)
    return z
