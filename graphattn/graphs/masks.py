"""Graphs from masks and from selected keys, and masks from graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphattn._checks import (
    check_has_numbers,
    check_num_pairs,
    check_size,
    check_strided,
    is_float,
    kind_of,
)
from graphattn._tensors import row_pointer
from graphattn.graphs.pairs import sort_pairs

if TYPE_CHECKING:
    from graphattn.graphs.graph import BipartiteGraph

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def from_mask(cls: type[BipartiteGraph], mask: Tensor) -> BipartiteGraph:
    """Return the graph of a mask. A boolean mask is ``True`` where a query attends to a key. A
    floating mask is 0 where a query attends, and elsewhere ``-inf`` or the minimum of its dtype.

    This is the polarity of ``scaled_dot_product_attention`` and of Hugging Face. The boolean
    masks of ``torch.nn.MultiheadAttention`` mean the opposite: pass ``~mask``.

    Args:
        mask (Tensor): ``[query, key]`` or ``[batch, heads, query, key]``. The second form leads to
            a segment for each head and sequence, beginning with the sequences of head 0. If
            ``heads`` is 1, all heads share the graph.

    Raises:
        TypeError: The mask is neither boolean nor floating.
        ValueError: The mask has another shape or other values.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph
        >>> BipartiteGraph.from_mask(torch.ones(2, 1, 3, 3).tril().log())
        BipartiteGraph(num_queries=6, num_keys=6, num_edges=12, num_segments=2, density=66.7%)
    """
    is_on = _attends(mask)
    if is_on.dim() not in (2, 4):
        raise ValueError(f"'mask' must have shape [query, key] or [batch, heads or 1, query, key] "
                         f"(got shape {tuple(mask.shape)})")
    segments = is_on.unsqueeze(0) if is_on.dim() == 2 else is_on.transpose(0, 1).flatten(0, 1)
    num_segments, num_queries, num_keys = segments.shape
    segment, query, key = segments.nonzero().unbind(1)
    indptr = row_pointer(segment * num_queries + query, num_segments * num_queries)
    return cls.from_csr(indptr, segment * num_keys + key, num_segments * num_keys, validate=False,
                        **_equal_segments(*segments.shape, mask.device))


def from_topk(cls: type[BipartiteGraph], indices: Tensor,
              num_keys: int | None = None) -> BipartiteGraph:
    """Return the graph in which each query attends to selected keys, such as the indices that
    ``topk`` returns.

    Args:
        indices (Tensor): The keys of each query, integers ``[query, k]`` or ``[batch, query, k]``.
            The second form leads to a segment for each sequence, and keys are numbered from 0
            within each sequence. Negative indices are ignored, and duplicates are merged.
        num_keys (int, optional): Number of keys of each segment; the number of queries if omitted.

    Raises:
        TypeError: ``indices`` are not integers.
        ValueError: ``indices`` have another shape, or are not below the number of keys.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph
        >>> scores = torch.tensor([[3., 1., 2.], [0., 5., 4.]])
        >>> BipartiteGraph.from_topk(scores.topk(2).indices, num_keys=3).to_mask().int()
        tensor([[1, 0, 1],
                [0, 1, 1]], dtype=torch.int32)
    """
    if not isinstance(indices, Tensor) or indices.dtype not in _INTEGERS:
        raise TypeError(f"'indices' must be a Tensor of integers (got {kind_of(indices)})")
    check_strided('indices', indices)
    check_has_numbers('indices', indices)
    if indices.dim() not in (2, 3):
        raise ValueError(f"'indices' must have shape [query, k] or [batch, query, k] (got shape "
                         f"{tuple(indices.shape)})")
    segments = indices.long().unsqueeze(0) if indices.dim() == 2 else indices.long()
    batch, num_queries, _ = segments.shape
    num_keys = num_queries if num_keys is None else num_keys
    check_size('num_keys', num_keys)
    if segments.numel() and int(segments.max()) >= num_keys:
        raise ValueError(f"'indices' must be from 0 to {num_keys - 1}, or negative for no key (got "
                         f"{int(segments.max())}); pass 'num_keys' if there are more keys than "
                         f"queries")
    check_num_pairs(batch * num_queries, batch * num_keys)
    segment = torch.arange(batch, device=segments.device).view(-1, 1, 1)
    query = torch.arange(batch * num_queries, device=segments.device).view(batch, num_queries, 1)
    pair = query * (batch * num_keys) + segment * num_keys + segments
    return cls.from_pairs(sort_pairs(pair[segments >= 0]), batch * num_queries, batch * num_keys,
                          **_equal_segments(batch, num_queries, num_keys, segments.device))


def to_mask(self: BipartiteGraph) -> Tensor:
    """Return the graph as a boolean mask ``[num_queries, num_keys]``, which is ``True`` where a
    query attends."""
    mask = torch.zeros(self.num_queries, self.num_keys, dtype=torch.bool, device=self.device)
    mask[self.query, self.key] = True
    return mask


def is_above_lowest(added: Tensor) -> Tensor:
    """Return where an additive mask lets attend: neither ``-inf`` nor about its dtype's minimum."""
    return ~(added <= torch.finfo(added.dtype).min / 2)


def _attends(mask: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or is_float(mask.dtype)):
        raise TypeError(f"'mask' must be a Tensor of dtype bool (True = attend), or of a floating "
                        f"dtype (0 = attend, -inf = do not attend) (got {kind_of(mask)})")
    check_strided('mask', mask)
    check_has_numbers('mask', mask)
    if mask.dtype == torch.bool:
        return mask
    is_on = is_above_lowest(mask)
    others = mask[is_on & (mask != 0)]
    if others.numel():
        raise ValueError(f"'mask' must contain only 0 (attend) and -inf (do not attend) if its "
                         f"dtype is floating (got {others[0].item()}); pass other numbers that are "
                         f"added to logits as 'edge_bias'")
    return is_on


def _equal_segments(num_segments: int, num_queries: int, num_keys: int,
                    device: torch.device) -> dict[str, Tensor]:
    segment = torch.arange(num_segments + 1, device=device)
    return {'query_ptr': segment * num_queries, 'key_ptr': segment * num_keys}
