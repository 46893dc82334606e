"""Checks of the factors and segments of a factor model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphattn._checks import check_floating, check_on, check_shape
from graphattn._tensors import is_traced
from graphattn.graphs.segments import Segments


def check_factors(factors: dict[str, Tensor], query_ptr: Tensor | None,
                  key_ptr: Tensor | None) -> None:
    """Raise an error unless the factors are valid and agree in shape and device."""
    check_floating(**factors)
    query_factor, mixing, key_factor = factors.values()
    check_shape('query_factor', query_factor, ('nodes', 'clusters'))
    clusters = query_factor.size(1)
    if clusters == 0:
        raise ValueError(f"'query_factor' must have at least one column, a cluster (got shape "
                         f"{tuple(query_factor.shape)})")
    own = ", with the columns of 'query_factor'"
    check_shape('key_factor', key_factor, ('nodes', clusters), own)
    heads = ('heads',) if mixing.dim() == 3 else ()
    check_shape('mixing', mixing, (*heads, clusters, clusters), own)
    for name, other in {**factors, 'query_ptr': query_ptr, 'key_ptr': key_ptr}.items():
        if isinstance(other, Tensor):
            check_on(name, other, query_factor.device, "'query_factor'")
    check_finite_and_not_negative(factors)
    _check_nodes_of_heads(factors)


def check_finite_and_not_negative(factors: dict[str, Tensor]) -> None:
    """Raise a ValueError if a factor has a negative or non-finite value."""
    factors = {name: factor.detach() for name, factor in factors.items() if factor.numel()}
    # factors on a GPU and traced factors are not checked
    if not factors or not _can_be_read(*factors.values()):
        return
    with torch.autocast(next(iter(factors.values())).device.type, enabled=False):
        bounds = torch.stack([torch.stack(torch.aminmax(factor)).double()
                              for factor in factors.values()])
    for name, (low, high) in zip(factors, bounds.tolist()):
        if not (low >= 0 and high < math.inf):
            raise ValueError(f"'{name}' must be finite and not negative (got values from {low} to "
                             f"{high})")


def _can_be_read(*tensors: Tensor) -> bool:
    # without synchronising a GPU
    return tensors[0].device.type == 'cpu' and not is_traced(*tensors)


def _check_nodes_of_heads(factors: dict[str, Tensor]) -> None:
    mixing = factors['mixing']
    num_heads = mixing.size(0) if mixing.dim() == 3 else 1
    if num_heads == 0:
        raise ValueError(f"'mixing' must have at least one head in its first dimension (got shape "
                         f"{tuple(mixing.shape)})")
    for name in ('query_factor', 'key_factor'):
        size = factors[name].size(0)
        if size % num_heads:
            raise ValueError(f"'{name}' must have shape [{num_heads} * n, k], with n nodes for "
                             f"each of the {num_heads} heads of 'mixing' (got {size} rows)")


def check_segments_of_heads(segments: Segments, num_heads: int, sizes: tuple[int, int]) -> None:
    """Raise a ValueError unless heads have equal numbers of segments, queries and keys."""
    if num_heads == 1 or len(segments) == 0:
        return
    segments_per_head, rest = divmod(len(segments), num_heads)
    if rest:
        raise ValueError(f"'query_ptr' must mark a multiple of {num_heads} segments, equally many "
                         f"for each of the {num_heads} heads of 'mixing' (got {len(segments)} "
                         f"segments)")
    # on a GPU, only the number of segments is checked
    if not _can_be_read(segments.query_ptr):
        return
    for name, ptr, size in (('query_ptr', segments.query_ptr, sizes[0]),
                            ('key_ptr', segments.key_ptr, sizes[1])):
        head_start = ptr[::segments_per_head].tolist()
        if head_start != [head * (size // num_heads) for head in range(num_heads + 1)]:
            raise ValueError(f"'{name}' must mark {size} / {num_heads} nodes for each head of "
                             f"'mixing', one head after the other (got heads that begin at "
                             f"{head_start})")
