"""The definition of diffusion: the recursion over hops."""

from collections.abc import Callable

from torch import Tensor

from graphattn.ops.edge_math import restart


def diffuse(one_hop: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Tensor,
            teleport: Tensor) -> Tensor:
    """Return ``Z_K`` of the recursion ``Z_{k+1} = (1 - t) A Z_k + t V`` from ``Z_0 = V``."""
    # The expected value at the end of a random walk from the query, which ends after k hops with
    # probability teleport[k]. Its first hop is the last step, so teleports are used in reverse
    # order.
    z = value
    for t in reversed(teleport.unbind()):
        z = restart(one_hop(weight, z), value, t)
    return z
