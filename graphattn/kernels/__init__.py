r"""One meaning of attention over edges, several speeds, one file each.

Every module of this package defines ``edge_attention(query, key, value, graph, *, edge_bias,
edge_gate, scale, dropout_p)`` that returns the output and the weights on the edges (``None`` from
those in :data:`FUSED`), or raises ``ImportError`` when it is imported without what it is built on.
Arguments arrive validated (see :func:`graphattn.functional.edge_attention`, which documents them).
"""

from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

BACKENDS = ('reference', 'gather', 'gather_ext', 'csr', 'numba', 'sdpa')
# These never form the weights, so they return None for them. They take half precision as it is and
# accumulate in float32; the others compute in the dtype that they are given.
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
