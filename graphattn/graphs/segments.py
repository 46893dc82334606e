"""Segments of queries and keys: the sequences of a batch, once for each head if each head has its
own graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, groupby

import torch
from torch import Tensor

from graphattn._checks import check_pointer, check_ptr
from graphattn._tensors import host_copy, is_traced, out_of_inference

_NODES_AT_ONCE = 64


class Segments:
    """Ranges of queries, each paired with a range of keys; no edge leaves its pair. Immutable."""

    def __init__(self, query_ptr: Tensor, key_ptr: Tensor, num_pairs: int | None = None,
                 is_square: bool | None = None, shapes: list[tuple[int, int]] | None = None):
        is_shared = key_ptr is query_ptr
        self.query_ptr = out_of_inference(query_ptr)
        self.key_ptr = self.query_ptr if is_shared else out_of_inference(key_ptr)
        self.ptrs = self.query_ptr, self.key_ptr
        if shapes is not None:
            num_pairs = sum(num_queries * num_keys for num_queries, num_keys in shapes)
            is_square = all(num_queries == num_keys for num_queries, num_keys in shapes)
        # Both properties are computed here if this is cheap, so that compiled code need not read
        # values.
        if (None in (num_pairs, is_square) and query_ptr.device.type == 'cpu'
                and not is_traced(query_ptr)):
            num_queries, num_keys = query_ptr.diff(), key_ptr.diff()
            num_pairs = int(num_queries @ num_keys)
            is_square = is_shared or torch.equal(num_queries, num_keys)
        self._num_pairs, self._is_square = num_pairs, is_square
        self._shapes = shapes

    @classmethod
    def of(cls, query_ptr: Tensor | None, key_ptr: Tensor | None, sizes: tuple[int, int],
           device: torch.device, *, heads: int = 1, validate: bool = True,
           look: bool = True) -> Segments:
        """Return the segments that ``query_ptr`` and ``key_ptr`` mark; one per head where they are
        None."""
        # sizes: queries, keys. Without key_ptr, query_ptr is used if there are as many keys as
        # queries. heads: each head has its own graph, nodes of head 0 first. validate: check and
        # copy. look: at values too, which synchronises a GPU.
        (num_queries, num_keys), known, ptrs = sizes, (None, None), []
        if query_ptr is key_ptr is None and not torch.compiler.is_compiling():
            known = int(num_queries) * int(num_keys) // heads, num_queries == num_keys
        is_shared = (key_ptr is None or key_ptr is query_ptr) and num_keys == num_queries
        for name, ptr, size in (('query_ptr', query_ptr, num_queries),
                                ('key_ptr', key_ptr, num_keys))[:1 if is_shared else 2]:
            if ptr is None:
                ptr = torch.arange(heads + 1, device=device) * (size // heads)
            elif validate:
                check_pointer(name, ptr, device)
                if look:
                    check_ptr(name, ptr, size, device)
                # a copy, because changes of the original through numpy could not be detected
                ptr = ptr.clone()
            ptrs.append(ptr)
        query_ptr, key_ptr = ptrs[0], ptrs[-1]
        if validate and query_ptr.numel() != key_ptr.numel():
            raise ValueError(f"'query_ptr' and 'key_ptr' must mark the same number of segments "
                             f"(got {query_ptr.numel() - 1} and {key_ptr.numel() - 1})")
        return cls(query_ptr, key_ptr, *known)

    @classmethod
    def join(cls, parts: list[Segments], sizes: list[tuple[int, int]]) -> Segments:
        """Return the segments of the disjoint union of graphs with these ``sizes`` (queries,
        keys)."""
        num_queries, num_keys = zip(*sizes)
        query_ptr = join_ptrs([part.query_ptr for part in parts], num_queries)
        is_shared = all(part.key_ptr is part.query_ptr for part in parts)
        key_ptr = query_ptr if is_shared else join_ptrs([part.key_ptr for part in parts], num_keys)
        known_pairs, known_square = zip(*(part.known() for part in parts))
        return cls(query_ptr, key_ptr, None if None in known_pairs else sum(known_pairs),
                   None if None in known_square else all(known_square))

    def __len__(self) -> int:
        return self.query_ptr.numel() - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segments):
            return NotImplemented
        are_shared = all(part.key_ptr is part.query_ptr for part in (self, other))
        pairs = [*zip(self.ptrs, other.ptrs)][are_shared:]
        return all(ours is theirs or torch.equal(ours, theirs) for ours, theirs in pairs)

    __hash__ = None

    @property
    def num_pairs(self) -> int:
        if self._num_pairs is not None:
            return self._num_pairs
        num_pairs = int(self.pairs_per_segment().sum())
        if not is_traced(self.query_ptr):  # compiled code must not mutate objects
            self._num_pairs = num_pairs
        return num_pairs

    @property
    def is_square(self) -> bool:
        if self._is_square is not None:
            return self._is_square
        is_square = self.query_ptr is self.key_ptr or torch.equal(self.query_ptr, self.key_ptr)
        if not is_traced(self.query_ptr):
            self._is_square = is_square
        return is_square

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Numbers of queries and of keys of each segment. The first call synchronises a GPU."""
        if self._shapes is not None:
            return self._shapes
        shapes = list(zip(*(host_copy(ptr).diff().tolist() for ptr in self.ptrs)))
        if not is_traced(self.query_ptr):
            self._shapes = shapes
        return shapes

    @cached_property
    def num_runs(self) -> int:
        """Number of groups of consecutive segments of the same shape."""
        return sum(1 for _ in groupby(self.shapes))

    def known(self) -> tuple[int | None, bool | None]:
        """Return ``num_pairs`` and ``is_square``, ``None`` for what has not been computed yet."""
        return self._num_pairs, self._is_square

    def pairs_per_segment(self) -> Tensor:
        return self.query_ptr.diff() * self.key_ptr.diff()

    def of_queries(self, num_queries: int | None = None) -> Tensor:
        """Return the segment of each query. Without ``num_queries``, this synchronises a GPU."""
        return segment_of(self.query_ptr, num_queries)

    def of_keys(self, num_keys: int | None = None) -> Tensor:
        """Return the segment of each key. Without ``num_keys``, this synchronises a GPU."""
        return segment_of(self.key_ptr, num_keys)

    def transpose(self) -> Segments:
        return Segments(self.key_ptr, self.query_ptr)

    def to(self, device: torch.device | str) -> Segments:
        query_ptr = self.query_ptr.to(device)
        is_shared = self.key_ptr is self.query_ptr
        key_ptr = query_ptr if is_shared else self.key_ptr.to(device)
        # what is computed already is not computed again
        return Segments(query_ptr, key_ptr, *self.known())

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.query_ptr.tolist()}, {self.key_ptr.tolist()})'


def segment_of(ptr: Tensor, num_nodes: int | None = None) -> Tensor:
    """Return the index of the segment that each node belongs to, int64 ``[num_nodes]``."""
    return torch.repeat_interleave(ptr.diff(), output_size=num_nodes)


def sum_segments(value: Tensor, ptr: Tensor) -> Tensor:
    """Return the sum over the nodes of each segment, in float64."""
    value = value.double()
    if value.device.type != 'cpu':
        # On a GPU, a single thread sums a segment, so pieces of segments are summed first.
        cuts = torch.arange(0, len(value), _NODES_AT_ONCE, device=ptr.device)
        piece_ptr = torch.cat([ptr, cuts]).sort().values
        value = torch.segment_reduce(value, 'sum', offsets=piece_ptr, axis=0, initial=0)
        ptr = torch.searchsorted(piece_ptr, ptr)
    return torch.segment_reduce(value, 'sum', offsets=ptr, axis=0, initial=0)


def join_ptrs(ptrs: list[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return where the segments of several graphs begin if their nodes are concatenated."""
    # sizes are given, so that ptrs need not be read
    starts = accumulate(sizes, initial=0)
    return torch.cat([ptrs[0][:1]] + [ptr[1:] + start for ptr, start in zip(ptrs, starts)])
