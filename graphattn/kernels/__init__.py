r"""One meaning of attention over edges, several speeds, one file each.

A module of this package either forms the weights: it defines ``attention_weights(query, key, graph,
*, edge_bias, edge_gate, scale)``, ``[num_edges, heads]``, and ``weighted_sum(weight, value,
graph)``. Or it is one of :data:`FUSED` and defines ``edge_attention(query, key, value, graph, *,
edge_bias, edge_gate, scale, dropout_p)``. :mod:`numba` does both, all hops of a diffusion in
one ``attention_diffusion(weight, value, graph, teleport)``, and weights and hops in one
``diffused_attention(query, key, value, graph, teleport, *, edge_bias, edge_gate, scale,
dropout_p)``. Modules raise ``ImportError`` when they are imported without what they are built on.
Arguments arrive validated (see :mod:`graphattn.functional`, which documents them).
"""

from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

BACKENDS = ('reference', 'gather', 'gather_ext', 'csr', 'numba', 'sdpa')
# These attend without weights that are kept. They take half precision as it is and accumulate in
# float32; the others compute in the dtype that they are given.
FUSED = ('numba', 'sdpa')


def load(name: str) -> ModuleType:
    """The kernel module called ``name``, imported on first use.

    Raises:
        ValueError: There is no such backend.
        ImportError: The backend needs a package that is not installed.
    """
    if name not in BACKENDS:
        near = get_close_matches(str(name), BACKENDS)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ''
        raise ValueError(f"'backend' is unknown (got {name!r}); {hint}there are 'auto', "
                         f"{', '.join(map(repr, BACKENDS))}")
    return import_module(f'graphattn.kernels.{name}')


__all__ = ['BACKENDS', 'FUSED', 'load']
