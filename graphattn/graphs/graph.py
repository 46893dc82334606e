"""The data structure of the library: which query attends to which key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from reprlib import repr as short
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphattn._checks import (
    check_bool,
    check_device,
    check_edge_index,
    check_edge_prob,
    check_kind,
    check_num_pairs,
    check_on,
    check_on_edges,
    check_range,
    check_rows,
    check_segments_of_rows,
    check_size,
    check_square,
    kind_of,
)
from graphattn._tensors import constant_of, is_traced, narrow, out_of_inference, row_pointer
from graphattn.graphs import batching, conversions, masks, picture, points, pyg_data
from graphattn.graphs.block_mask import to_block_mask
from graphattn.graphs.pairs import (
    csc_of_rows,
    find_pairs,
    find_rows,
    from_edge_index,
    is_ascending,
    merge_rows,
    number_pairs,
    plain,
    rows_of_pairs,
    sort_pairs,
)
from graphattn.graphs.segments import Segments
from graphattn.utils.building import check_stored

if TYPE_CHECKING:
    from torch_geometric import EdgeIndex


class BipartiteGraph:
    r"""Edges from keys to queries: the sparsity pattern of an attention head.

    Edges point the way information flows, which is PyG's source to target. The same orientation is
    used everywhere::

        to_mask()   key 0  1  2          edge_index = [[0, 1, 1, 2],     key j, the source
        query 0       [ 1  1  . ]                      [0, 0, 1, 1]]     query i, the target
        query 1       [ .  1  1 ]
                                         key 0    key 1    key 2
        query 0 attends to keys 0, 1         \    /   \    /
        query 1 attends to keys 1, 2        query 0   query 1

    Edges are a *set*, sorted by query and then by key. The sequences of a batch are **segments**;
    if each head has its own graph, there is a segment for each head and sequence. Segment ``b`` has
    the queries ``query_ptr[b]:query_ptr[b + 1]`` and the keys ``key_ptr[b]:key_ptr[b + 1]``, and no
    edge leaves its segment. A graph is immutable and can be copied, pickled and moved between
    devices. A copy has the values of ``edge_prob`` without a gradient.

    The graph stores CSR rows (:attr:`csr`). An edge takes 2 bytes if there are up to 65,536 keys,
    and 4 bytes if there are more. The order by key (:attr:`csc`) is cached on first use; all other
    properties are computed on access.

    Args:
        edge_index (Tensor): int64 ``[2, num_edges]``, key over query, sorted by query and then by
            key, each pair once. :meth:`from_edge_index` accepts any order.
        num_queries (int): Number of queries.
        num_keys (int, optional): Number of keys; ``num_queries`` if omitted.
        edge_prob (Tensor, optional): floating ``[num_edges]`` in [0, 1], the probability with which
            each edge was drawn. It may require a gradient.
        query_ptr (Tensor, optional): Where the queries of each segment begin, int64 ``[num_segments
            + 1]``; one segment if omitted.
        key_ptr (Tensor, optional): Where the keys of each segment begin, int64 ``[num_segments +
            1]``; ``query_ptr`` if omitted and the numbers of keys and queries are equal.
        validate (bool): Whether to check all arguments in O(num_edges). Pass ``False`` only for
            edges that the caller has just built.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices, order, range or segments are not as described.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph
        >>> graph = BipartiteGraph(torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]]), 2, 3)
        >>> graph
        BipartiteGraph(num_queries=2, num_keys=3, num_edges=4, density=66.7%)
        >>> graph.to_mask().int()
        tensor([[1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """

    is_listed = True  # whether the edges are in memory from the beginning

    def __init__(
        self,
        edge_index: Tensor,
        num_queries: int,
        num_keys: int | None = None,
        *,
        edge_prob: Tensor | None = None,
        query_ptr: Tensor | None = None,
        key_ptr: Tensor | None = None,
        validate: bool = True,
    ):
        num_keys = num_queries if num_keys is None else num_keys
        check_bool(validate=validate)
        if validate:
            check_edge_index(edge_index)
            check_size('num_queries', num_queries)
            check_size('num_keys', num_keys)
        check_num_pairs(num_queries, num_keys)
        key, query = plain(edge_index)
        if validate:
            check_range(edge_index, num_queries, num_keys)
            if not is_ascending(number_pairs(key, query, num_keys)):
                raise ValueError("'edge_index' must be sorted by query (row 1), then by key (row "
                                 "0), without duplicate pairs; call "
                                 "BipartiteGraph.from_edge_index, which sorts edges and merges "
                                 "duplicates")
        segments = Segments.of(query_ptr, key_ptr, (num_queries, num_keys), query.device,
                               validate=validate)
        self._fill(row_pointer(query.contiguous(), int(num_queries)), key, int(num_keys), segments,
                   edge_prob)
        if validate:
            self._validate_values()

    def _fill(self, indptr: Tensor, key: Tensor, num_keys: int, segments: Segments,
              edge_prob: Tensor | None, is_reordered: bool = False) -> None:
        self._indptr, self._key = out_of_inference(indptr), out_of_inference(narrow(key, num_keys))
        self._num_keys, self._segments = num_keys, segments
        self._edge_prob = out_of_inference(edge_prob) if isinstance(edge_prob,
                                                                    Tensor) else edge_prob
        self._is_reordered = is_reordered
        self._csc: tuple[Tensor, Tensor, Tensor] | None = None
        self._held = [] if is_traced(self._key) else self._with_versions()

    @staticmethod
    def _of(*parts: Any) -> BipartiteGraph:
        # No checks; never a subclass, because the new edges may break what a subclass guarantees.
        graph = BipartiteGraph.__new__(BipartiteGraph)
        graph._fill(*parts)
        return graph

    # Constructors ####################################################################

    @classmethod
    def from_csr(
        cls,
        indptr: Tensor,
        key: Tensor,
        num_keys: int | None = None,
        *,
        edge_prob: Tensor | None = None,
        query_ptr: Tensor | None = None,
        key_ptr: Tensor | None = None,
        validate: bool = True,
    ) -> BipartiteGraph:
        """Build a graph from its rows, in the CSR format.

        Args:
            indptr (Tensor): Where the edges of each query begin, int64 ``[num_queries + 1]``.
            key (Tensor): The key of each edge, of an integer dtype, ``[num_edges]``. Keys ascend
                within each query and are numbered over all segments.
            num_keys (int, optional): Number of keys; the number of queries if omitted.
            edge_prob, query_ptr, key_ptr: As in :class:`BipartiteGraph`.
            validate (bool): Whether to check all arguments in O(num_edges). Pass ``False`` only for
                tensors that the caller has just built and that no other code modifies.
        """
        check_bool(validate=validate)
        if validate:
            check_rows(indptr, key, num_keys)
            indptr, key = indptr.clone(), key.clone()
        num_queries = indptr.numel() - 1
        num_keys = num_queries if num_keys is None else num_keys
        check_num_pairs(num_queries, num_keys)
        segments = Segments.of(query_ptr, key_ptr, (num_queries, num_keys), indptr.device,
                               validate=validate)
        num_keys = num_keys if is_traced(indptr) else int(num_keys)  # int() is constant in exports
        graph = cls._of(indptr, key, num_keys, segments, edge_prob)
        if validate:
            graph._validate_values()
        return graph

    @classmethod
    def from_pairs(cls, pair: Tensor, num_queries: int, num_keys: int, *,
                   query_ptr: Tensor | None = None,
                   key_ptr: Tensor | None = None) -> BipartiteGraph:
        """Build a graph from ``pair``, the numbers ``query * num_keys + key`` of its edges, int64
        ``[num_edges]``. The numbers must strictly ascend. No argument is checked."""
        segments = Segments.of(query_ptr, key_ptr, (num_queries, num_keys), pair.device,
                               validate=False)
        return cls._of(*rows_of_pairs(pair, num_queries, num_keys), num_keys, segments, None)

    @classmethod
    def batch(cls, graphs: Sequence[BipartiteGraph]) -> BipartiteGraph:
        """Return the disjoint union of ``graphs``. The sequences (segments) of the first graph come
        first, and the segments of each graph keep their order.

        Raises:
            ValueError: ``graphs`` is empty, only some of the graphs have ``edge_prob``, or the
                graphs are on different devices.
        """
        return batching.join(BipartiteGraph, graphs)

    # Properties ######################################################################

    @property
    def csr(self) -> tuple[Tensor, Tensor]:
        """The edges in CSR form, as two tensors: where the edges of each query begin, int64
        ``[num_queries + 1]``; and the key of each edge, ``[num_edges]``, in the narrowest dtype of
        uint16, int32 and int64. Do not modify these tensors."""
        return self._indptr, self._key

    @property
    def csc(self) -> tuple[Tensor, Tensor, Tensor]:
        """The edges sorted by key, as three tensors that are cached on first use: where the edges
        of each key begin, int64 ``[num_keys + 1]``; the query of each edge, uint16, int32 or int64
        ``[num_edges]``; and the index of each edge in :attr:`edge_index`, int32 or int64
        ``[num_edges]``."""
        if self._csc is not None:
            return self._csc
        csc = csc_of_rows(self._indptr, self._key, self._num_keys)
        if not torch.compiler.is_compiling():  # compiled code must not mutate objects
            self._csc = csc = tuple(map(out_of_inference, csc))
        return csc

    @property
    def edge_index(self) -> EdgeIndex:
        """The edges as PyG's ``EdgeIndex`` ``[2, num_edges]`` of ``sparse_size`` (num_keys,
        num_queries), sorted by query and then by key."""
        from torch_geometric import EdgeIndex

        return EdgeIndex(torch.stack([self.key, self.query]), sort_order='col',
                         sparse_size=(self.num_keys, self.num_queries))

    @property
    def key(self) -> Tensor:
        """The key of each edge, int64 ``[num_edges]``."""
        return self._key.to(torch.long, copy=True)

    @property
    def query(self) -> Tensor:
        """The query of each edge, int64 ``[num_edges]``, ascending."""
        return torch.repeat_interleave(self._indptr.diff(), output_size=self.num_edges)

    @property
    def indptr(self) -> Tensor:
        """The CSR row pointer: where the edges of each query begin, int64 ``[num_queries + 1]``."""
        return self._indptr.clone()

    @property
    def edge_prob(self) -> Tensor | None:
        """The probability with which each edge was drawn, ``[num_edges]``, or ``None``."""
        return self._edge_prob

    @property
    def edge_gate(self) -> Tensor | None:
        """Ones ``[num_edges]`` that multiply the dot products of the edges, and pass their gradient
        to :attr:`edge_prob`; or ``None`` if the edges have no probabilities. The tensor stores a
        single number."""
        return None if self._edge_prob is None else constant_of(self._edge_prob, 1.)

    @property
    def segments(self) -> Segments:
        """The sequences (segments) of the graph, as a
        :class:`graphattn.graphs.segments.Segments`."""
        return self._segments

    @property
    def query_ptr(self) -> Tensor:
        """Return where the queries of each sequence (segment) begin, int64 ``[num_segments +
        1]``."""
        return self._segments.query_ptr.clone()

    @property
    def key_ptr(self) -> Tensor:
        """Return where the keys of each sequence (segment) begin, int64 ``[num_segments + 1]``."""
        return self._segments.key_ptr.clone()

    @property
    def num_queries(self) -> int:
        """Number of queries over all sequences (segments)."""
        return self._indptr.numel() - 1

    @property
    def num_keys(self) -> int:
        """Number of keys over all sequences (segments)."""
        return self._num_keys

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self._key.numel()

    @property
    def num_pairs(self) -> int:
        """Number of (query, key) pairs inside the sequences (segments)."""
        is_one_segment = self._segments.query_ptr.size(0) == 2  # needs no tensor values
        num_queries = self._indptr.numel() - 1
        return num_queries * self._num_keys if is_one_segment else self._segments.num_pairs

    @property
    def num_segments(self) -> int:
        """Number of segments: the number of sequences, times the number of heads if each head has
        its own graph."""
        return self._segments.query_ptr.size(0) - 1  # len is constant in exported code

    @property
    def is_square(self) -> bool:
        """Return whether every sequence (segment) has equal numbers of keys and queries. Only then
        can keys and queries be the same tokens."""
        return self._segments.is_square

    @cached_property
    def is_complete(self) -> bool:
        """Return whether each query is known to attend to all keys of its sequence (segment). The
        answer is ``False`` in compiled code, which cannot read the sizes of segments. Reading these
        sizes synchronises a GPU, so they are read only if the number of edges does not rule out a
        complete graph."""
        # Square segments have the fewest pairs if all have the same size.
        are_square = self._segments.query_ptr is self._segments.key_ptr
        if are_square and self.num_edges * self.num_segments < self.num_queries**2:
            return False
        return not is_traced(self._indptr) and self.num_edges == self.num_pairs

    @property
    def is_reordered(self) -> bool:
        """Return whether :meth:`from_edge_index` reordered or merged the edges. If so, values in
        the order that was passed do not match the edges of the graph."""
        return self._is_reordered

    @property
    def nbytes(self) -> int:
        """Number of bytes of the graph, including :attr:`csc` if it is cached."""
        held = [self._indptr, self._key, *self._segments.ptrs, *(self._csc or ())]
        held += [self._edge_prob] if isinstance(self._edge_prob, Tensor) else []
        return sum(tensor.nbytes for tensor in held)

    @property
    def device(self) -> torch.device:
        """The device of the edges."""
        return self._key.device

    def in_degree(self) -> Tensor:
        """Return the number of keys that each query attends to, int64 ``[num_queries]``."""
        return self._indptr.diff()

    def out_degree(self) -> Tensor:
        """Return the number of queries that attend to each key, int64 ``[num_keys]``."""
        return torch.bincount(self.key, minlength=self.num_keys)

    def density(self, per_segment: bool = False) -> float | Tensor:
        """Return the fraction of the (query, key) pairs inside the sequences (segments) that are
        edges.

        Args:
            per_segment (bool): Whether to return one value for each segment instead of one for all
                segments.

        Returns:
            float, or float64 Tensor ``[num_segments]``. A segment without pairs has density 0.
        """
        check_bool(per_segment=per_segment)
        if not per_segment:
            return self.num_edges / max(self.num_pairs, 1)
        return self.edges_per_segment().double() / self._segments.pairs_per_segment().clamp(min=1)

    def edges_per_segment(self) -> Tensor:
        """Return the number of edges of each sequence (segment), int64 ``[num_segments]``."""
        return self._indptr[self._segments.query_ptr].diff()

    def validate(self) -> BipartiteGraph:
        """Check everything that the constructor checks, in O(num_edges), and return this graph."""
        check_rows(self._indptr, self._key, self.num_keys)
        self._validate_values()
        return self

    def check_unchanged(self) -> None:
        """Raise a ValueError if a tensor of the graph was changed in place.

        This check is needed because compiled loops do not check bounds. With a changed tensor, a
        loop could read outside of its arrays. Changes through ``.data`` are not detected.
        """
        if torch.compiler.is_compiling():
            return
        if any(part._version != version for part, version in self._held):
            raise ValueError("'graph' must not be modified, because graphs are immutable (got a "
                             "graph whose tensors were modified in place); build another graph "
                             "from the modified edges")

    # Set algebra #####################################################################

    def __or__(self, other: BipartiteGraph) -> BipartiteGraph:
        """Return the graph of the edges that are in at least one of both graphs. Set operations
        drop ``edge_prob``, because the probabilities are not valid for the result."""
        self._check_same_shape(other, '|')
        merged = merge_rows(self.csr, other.csr)
        if merged is not None:
            return self._of(*merged, self._num_keys, self._segments, None)
        return self._with_pairs(sort_pairs(torch.cat([self._pairs(), other._pairs()])))

    def __and__(self, other: BipartiteGraph) -> BipartiteGraph:
        """Return the graph of the edges that are in both graphs."""
        self._check_same_shape(other, '&')
        return self._with_pairs(self._pairs()[self.isin(other)])

    def __sub__(self, other: BipartiteGraph) -> BipartiteGraph:
        """Return the graph of the edges that this graph has and ``other`` does not have."""
        self._check_same_shape(other, '-')
        return self._with_pairs(self._pairs()[~self.isin(other)])

    def isin(self, other: BipartiteGraph) -> Tensor:
        """Return bool ``[num_edges]``: whether ``other`` has each edge of this graph."""
        check_kind('other', other, BipartiteGraph)
        self._check_same_shape(other, 'isin')
        is_found = find_rows(self.csr, other.csr)
        return find_pairs(self._pairs(), other._pairs()) if is_found is None else is_found

    def select_edges(self, keep: Tensor) -> BipartiteGraph:
        """Return the graph of the edges for which ``keep`` is ``True``, with the probabilities of
        these edges and their gradients.

        Args:
            keep (Tensor): bool ``[num_edges]``, in the order of :attr:`edge_index`.
        """
        if not isinstance(keep, Tensor) or keep.dtype != torch.bool:
            raise TypeError(f"'keep' must be a Tensor of dtype bool (got {kind_of(keep)})")
        check_on_edges('keep', keep, self.num_edges)
        check_on('keep', keep, self.device, 'the graph')
        before = torch.cat([keep.new_zeros(1, dtype=torch.long), keep.cumsum(0)])
        edge_prob = None if self.edge_prob is None else self.edge_prob[keep]
        key = self.key[keep]  # int64, because torch cannot index uint16
        return BipartiteGraph._of(before[self._indptr], key, self._num_keys, self._segments,
                                  edge_prob, self._is_reordered)

    def with_self_loops(self) -> BipartiteGraph:
        """Return this graph with an edge from every token to itself, without :attr:`edge_prob`. The
        graph must be square (:attr:`is_square`)."""
        check_square(self, 'with_self_loops')
        token = torch.arange(self.num_queries, device=self.device)
        return self._with_pairs(sort_pairs(torch.cat([self._pairs(),
                                                      token * (self.num_keys + 1)])))

    def without_self_loops(self) -> BipartiteGraph:
        """Return this graph without edges from a token to itself, and without :attr:`edge_prob`.
        The graph must be square (:attr:`is_square`)."""
        check_square(self, 'without_self_loops')
        return self._with_pairs(self._pairs()[self.key != self.query])

    def causal(self) -> BipartiteGraph:
        """Return this graph without edges to later tokens. The graph must be square
        (:attr:`is_square`). The remaining edges keep their probabilities."""
        check_square(self, 'causal')
        return self.select_edges(self.key <= self.query)

    def transpose(self) -> BipartiteGraph:
        """Return the graph in which keys and queries are exchanged."""
        key_indptr, query, perm = self.csc
        edge_prob = None if self.edge_prob is None else self.edge_prob[perm]
        return self._of(key_indptr.clone(), query.clone(), self.num_queries,
                        self._segments.transpose(), edge_prob)

    def __eq__(self, other: object) -> bool:
        """Return whether two graphs have equal sizes, sequences (segments), edges and edge
        probabilities."""
        if not isinstance(other, BipartiteGraph):
            return NotImplemented
        if self.device != other.device or (self.edge_prob is None) != (other.edge_prob is None):
            return False
        if self._key.is_meta:
            raise ValueError("'==' needs graphs with values (got two graphs on the device 'meta', "
                             "which stores no values)")
        return (self._same_shape(other) and torch.equal(self._indptr, other._indptr)
                and torch.equal(self._key, other._key)
                and (self.edge_prob is None or torch.equal(self.edge_prob, other.edge_prob)))

    __hash__ = None

    def to(self, device: torch.device | str) -> BipartiteGraph:
        """Return this graph on ``device``."""
        device = check_device(device)
        if device == self.device:
            return self
        edge_prob = None if self.edge_prob is None else self.edge_prob.to(device)
        return self._of(self._indptr.to(device), self._key.to(device), self.num_keys,
                        self._segments.to(device), edge_prob, self._is_reordered)

    def with_edge_prob(self, edge_prob: Tensor | None) -> BipartiteGraph:
        """Return a graph of the same edges with other probabilities, floating ``[num_edges]``, or
        without probabilities."""
        if edge_prob is not None:
            check_edge_prob(edge_prob, self.num_edges, self.device)
        graph = self._of(self._indptr, self._key, self.num_keys, self._segments, edge_prob,
                         self._is_reordered)
        graph._csc = self._csc
        return graph

    def __repr__(self) -> str:
        segments = f', num_segments={self.num_segments}' if self.num_segments != 1 else ''
        return (f'{type(self).__name__}(num_queries={self.num_queries}, num_keys={self.num_keys}, '
                f'num_edges={self.num_edges}{segments}, density={self.density():.1%})')

    def _repr_html_(self) -> str:
        return picture.html(self, repr(self))

    # Other forms of a graph, each in a file of its own ###############################

    from_edge_index = classmethod(from_edge_index)

    from_mask = classmethod(masks.from_mask)
    from_topk = classmethod(masks.from_topk)
    to_mask = masks.to_mask

    from_scipy = classmethod(conversions.from_scipy)
    from_networkx = classmethod(conversions.from_networkx)
    from_data = classmethod(pyg_data.from_data)
    from_nearest = classmethod(points.from_nearest)
    from_radius = classmethod(points.from_radius)
    to_scipy = conversions.to_scipy
    to_networkx = conversions.to_networkx
    to_data = pyg_data.to_data
    to_sparse_tensor = conversions.to_sparse_tensor
    to_block_mask = to_block_mask

    unbatch = batching.unbatch
    segment = batching.segment

    nearby_order = batching.nearby_order
    reorder = batching.reorder

    # Internals #######################################################################

    def _reduce_to_plain(self, protocol: int) -> tuple[Any, ...]:
        """Return how pickle restores a subclass as a plain graph."""
        return BipartiteGraph, (torch.empty(2, 0, dtype=torch.long), 0), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        key = self._key
        key = key.view(torch.int16) if key.dtype == torch.uint16 else key  # torch pickles no uint16
        edge_prob = None if self.edge_prob is None else self.edge_prob.detach()
        return dict(zip(_SAVED, (self._indptr, key, self.num_keys, *self._segments.ptrs, edge_prob,
                                 self.is_reordered)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Files may be untrusted.
        if not isinstance(state, dict) or state.keys() != set(_SAVED):
            raise ValueError(f"the saved graph must contain {', '.join(_SAVED)} (got "
                             f"{short(state)}); save the graph again with this version of "
                             f"graphattn")
        try:
            self._fill(*_parts_of(state))
            self._validate_values()
        except TypeError as error:  # in a file, the type of a field is one of its values
            raise ValueError(f'the saved graph is damaged: {error}') from error

    def _pairs(self) -> Tensor:
        return number_pairs(self.key, self.query, self.num_keys)

    def _with_pairs(self, pair: Tensor) -> BipartiteGraph:
        return self._of(*rows_of_pairs(pair, self.num_queries, self.num_keys), self.num_keys,
                        self._segments, None)

    def _with_versions(self) -> list[tuple[Tensor, int]]:
        # the tensors that must not change; a subclass may list its keys later
        parts = self._indptr, vars(self).get('_key'), *self._segments.ptrs, self._edge_prob
        return [(part, part._version) for part in parts
                if isinstance(part, Tensor) and not part.is_inference()]

    def _same_shape(self, other: BipartiteGraph) -> bool:
        return ((self.num_queries, self.num_keys) == (other.num_queries, other.num_keys)
                and self._segments == other._segments)

    def _check_same_shape(self, other: BipartiteGraph, operation: str) -> None:
        if not isinstance(other, BipartiteGraph):
            raise TypeError(f"'{operation}' needs two BipartiteGraphs (got "
                            f"{type(other).__name__})")
        if self.device != other.device:
            raise ValueError(f"'{operation}' needs two graphs on one device (got {self.device} and "
                             f"{other.device}); move the second by graph.to('{self.device}')")
        if not self._same_shape(other):
            raise ValueError(f"'{operation}' needs two graphs of equal sizes and segments (got "
                             f"{self} and {other})")

    def _validate_values(self) -> None:
        if self.edge_prob is not None:
            check_edge_prob(self.edge_prob, self.num_edges, self.device)
        if self.num_segments > 1:
            check_segments_of_rows(self._indptr, self.key, *self._segments.ptrs)


torch.serialization.add_safe_globals([BipartiteGraph])  # loading validates them
_SAVED = 'indptr', 'key', 'num_keys', 'query_ptr', 'key_ptr', 'edge_prob', 'is_reordered'


def _parts_of(state: dict[str, Any]) -> tuple[Any, ...]:
    # as the arguments of BipartiteGraph._fill; values of edges and segments are not checked
    for name, value in state.items():
        if isinstance(value, Tensor):
            check_stored(name, value)
    indptr, key, num_keys, query_ptr, key_ptr, edge_prob, is_reordered = map(state.get, _SAVED)
    if isinstance(key, Tensor) and key.dtype == torch.int16:
        key = key.view(torch.uint16)
    check_size('num_keys', num_keys)
    check_rows(indptr, key, num_keys)
    check_num_pairs(indptr.numel() - 1, num_keys)
    segments = Segments.of(query_ptr, key_ptr, (indptr.numel() - 1, num_keys), key.device)
    check_bool(is_reordered=is_reordered)
    return indptr.contiguous(), key.contiguous(), num_keys, segments, edge_prob, is_reordered


def check_graph(graph: BipartiteGraph) -> None:
    """Raise an error that says how to build a graph, unless ``graph`` is one."""
    if not isinstance(graph, BipartiteGraph):
        cure = ('call pair_attention for a soft mask' if hasattr(graph, 'logit_drop') else
                'pass pattern.build(num_tokens) for a pattern' if hasattr(graph, 'build') else
                'build a graph with BipartiteGraph.from_edge_index, from_mask, from_scipy or '
                'from_networkx')
        raise TypeError(f"'graph' must be a BipartiteGraph (got {type(graph).__name__}); {cure}")
