"""Several sequences in each row of a batch, one after the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from graphattn._checks import check_ptr
from graphattn.hugging_face.lazy_mask import LazyMask

__all__ = ['check_not_packed', 'packed_lengths']

POINTERS = 'cu_seq_lens_q', 'cu_seq_lens_k'


def packed_lengths(options: dict[str, Any], mask: Tensor, query: Tensor, key: Tensor,
                   has_cache: bool) -> tuple[int, ...] | None:
    """Return the lengths of all sequences if rows of the batch contain several sequences one after
    the other, or ``None`` if each row contains one sequence.

    ``cu_seq_lens_q`` or ``cu_seq_lens_k`` in ``options`` mark packed sequences. Without these, rows
    are packed if ``position_ids`` in ``options`` begin again inside a row, and there is neither a
    padding mask nor a cache, which is transformers' condition too. A model that is not causal must
    also have a single row, as ``DataCollatorWithFlattening`` makes it, because such models may give
    equal position ids to tokens of one sequence.

    Args:
        options (dict): Further arguments of the attention.
        mask (Tensor): Mask of the attention.
        query (Tensor): ``[batch, heads, num_queries, channels]``.
        key (Tensor): ``[batch, num_kv_heads, num_keys, channels]``.
        has_cache (bool): Whether the attention is called with a cache.
    """
    pointers = {name: options[name] for name in POINTERS if options.get(name) is not None}
    if pointers:
        return _between(pointers, mask, query, key)
    position_ids = options.get('position_ids')
    is_other = (position_ids is None or position_ids.dim() != 2 or has_cache
                or not isinstance(mask, LazyMask) or mask.how.get('attention_mask') is not None
                or query.size(2) != key.size(2) or position_ids.size(1) != query.size(2)
                or mask.is_bidirectional and len(query) > 1)
    if is_other:
        return None
    if 'packed' not in mask.made:  # all layers share the mask, and its values are read once
        mask.made['packed'] = _between_starts(position_ids.expand(len(query), -1))
    return mask.made['packed']


def _between(pointers: dict[str, Tensor], mask: Tensor, query: Tensor,
             key: Tensor) -> tuple[int, ...]:
    (batch, _, num_queries, _), num_keys = query.shape, key.size(2)
    if num_keys != num_queries:
        raise ValueError(f"'cu_seq_lens_q' must be None unless the keys are the tokens of the "
                         f"queries (got {num_queries} queries and {num_keys} keys); if the keys "
                         f"are in a cache, pass use_cache=False")
    if isinstance(mask, LazyMask) and mask.padding() is not None:
        raise ValueError("'attention_mask' must be None with 'cu_seq_lens_q', because packed "
                         "sequences have no padding (got a mask with padding); omit one of them")
    for name, ptr in pointers.items():
        is_short = getattr(ptr, 'dtype', None) == torch.int32  # as flash attention has them
        check_ptr(name, ptr.long() if is_short else ptr, batch * num_queries,
                  query.device)
    ends = [ptr.tolist() for ptr in pointers.values()]
    if ends[0] != ends[-1]:
        raise ValueError(f"'cu_seq_lens_k' must equal 'cu_seq_lens_q' in self-attention (got "
                         f"{ends[-1]} and {ends[0]})")
    return tuple(end - begin for begin, end in pairwise(ends[0]))


def _between_starts(position_ids: Tensor) -> tuple[int, ...] | None:
    """Return the lengths of all sequences, row by row, if a sequence begins wherever
    ``position_ids`` ``[batch, length]`` begin again. Return ``None`` if no row has several
    sequences, or if the position ids do not count up in each sequence."""
    is_start = position_ids == position_ids[:, :1]
    counts_up = is_start[:, 1:] | (position_ids.diff(dim=1) == 1)
    if not bool(counts_up.all()) or int(is_start.sum()) in (len(is_start), is_start.numel()):
        return None
    starts = is_start.flatten().nonzero().flatten().tolist()
    return tuple(end - start for start, end in zip(starts, [*starts[1:], is_start.numel()]))


def check_not_packed(options: dict[str, Any], why: str) -> None:
    """Raise a ``ValueError`` if ``options`` contain ``cu_seq_lens_q`` or ``cu_seq_lens_k``, which
    mark packed sequences. ``why`` completes the message "must be None ..."."""
    for name in POINTERS:
        if options.get(name) is not None:
            raise ValueError(f"{name!r} must be None {why}; pad the sequences instead, and pass an "
                             f"'attention_mask'")
