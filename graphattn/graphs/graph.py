"""The one data structure of the library: which query attends to which key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import networkx as nx
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils import _pytree

from graphattn._checks import (
    check_blocks_of_rows,
    check_bool,
    check_device,
    check_edge_index,
    check_edge_prob,
    check_kind,
    check_num_pairs,
    check_on_edges,
    check_order,
    check_range,
    check_rows,
    check_sides,
    check_size,
)
from graphattn._tensors import (
    is_traced,
    lasting,
    looks_once,
    narrow,
    on_cpu,
    row_pointer,
    undisturbed,
)
from graphattn.graphs import conversions
from graphattn.graphs.blocks import Blocks, join_ptrs
from graphattn.graphs.csc import csc_of_rows
from graphattn.graphs.edge_prob import constant_of
from graphattn.graphs.pairs import (
    find_pairs,
    first_of_each,
    is_ascending,
    number_pairs,
    order_pairs,
    rows_of_pairs,
    sort_edges_by_counting,
    sort_pairs,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
    from torch_geometric import EdgeIndex
    from torch_geometric.data import Data, HeteroData
    from torch_sparse import SparseTensor


class RepeatedEdges(ValueError):
    """An edge is given more than once where each has a value of its own."""


class BipartiteGraph:
    r"""Edges from keys to queries: the sparsity pattern of an attention head.

    Edges point the way information flows, which is PyG's source to target. The orientation is
    drawn here once and holds everywhere::

        to_mask()   key 0  1  2          edge_index = [[0, 1, 1, 2],     key j, the source
        query 0       [ 1  1  . ]                      [0, 0, 1, 1]]     query i, the target
        query 1       [ .  1  1 ]
                                         key 0    key 1    key 2
        query 0 attends to keys 0, 1         \    /   \    /
        query 1 attends to keys 1, 2        query 0   query 1

    Edges are a *set*, sorted by query and then by key. Sequences of a batch, and heads that own a
    graph each, stand side by side as **blocks**: block ``b`` holds the queries
    ``query_ptr[b]:query_ptr[b + 1]`` and the keys ``key_ptr[b]:key_ptr[b + 1]``, and no edge
    leaves its block. A graph is a value: no method changes it, and it copies, pickles and moves
    freely. A copy has the numbers of ``edge_prob`` without their gradient.

    Kept are rows (:attr:`csr`), of 2 bytes per edge for up to 65,536 keys and of 4 beyond; the
    order by key (:attr:`csc`) and tiles (:attr:`block_mask`) from their first use on; everything
    else is made when asked for.

    Args:
        edge_index (Tensor): int64 ``[2, num_edges]``, key over query, sorted by query and then by
            key, each pair once. :meth:`from_edge_index` takes any order.
        num_queries (int): Number of queries.
        num_keys (int, optional): Number of keys; as many as queries if omitted.
        edge_prob (Tensor, optional): floating ``[num_edges]`` in [0, 1], the probability with
            which each edge was drawn. May carry a gradient.
        query_ptr (Tensor, optional): int64 ``[num_blocks + 1]``; one block if omitted.
        key_ptr (Tensor, optional): int64 ``[num_blocks + 1]``; ``query_ptr`` if omitted and there
            are as many keys as queries.
        validate (bool): Check all of the above in O(num_edges). Pass ``False`` only for edges
            that the caller has just built.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices, order, range or blocks are not as described.

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
        key, query = _plain(edge_index)
        if validate:
            check_range(edge_index, num_queries, num_keys)
            if not is_ascending(number_pairs(key, query, num_keys)):
                raise ValueError("'edge_index' must be sorted by query (row 1), then by key (row "
                                 "0), each pair once; BipartiteGraph.from_edge_index sorts and "
                                 "merges")
        blocks = Blocks.of(query_ptr, key_ptr, (num_queries, num_keys), query.device,
                           validate=validate)
        self._fill(row_pointer(query.contiguous(), int(num_queries)), key, int(num_keys), blocks,
                   edge_prob)
        if validate:
            self._validate_values()

    def _fill(self, indptr: Tensor, key: Tensor, num_keys: int, blocks: Blocks,
              edge_prob: Tensor | None, is_reordered: bool = False) -> None:
        self._indptr, self._key = lasting(indptr), lasting(narrow(key, num_keys))
        self._num_keys, self._blocks = num_keys, blocks
        self._edge_prob = lasting(edge_prob) if isinstance(edge_prob, Tensor) else edge_prob
        self._is_reordered = is_reordered
        self._csc: tuple[Tensor, Tensor, Tensor] | None = None
        self._block_mask: BlockMask | None = None
        self._versions = self._current_versions()

    @staticmethod
    def _of(*parts: Any) -> BipartiteGraph:
        """A graph of the parts of :meth:`_fill`, unchecked; a plain one, because other edges than
        those of a subclass need not be what it promises."""
        graph = BipartiteGraph.__new__(BipartiteGraph)
        graph._fill(*parts)
        return graph

    # Constructors ####################################################################

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_queries: int,
        num_keys: int | None = None,
        *,
        edge_prob: Tensor | None = None,
        query_ptr: Tensor | None = None,
        key_ptr: Tensor | None = None,
        return_perm: bool = False,
    ) -> BipartiteGraph | tuple[BipartiteGraph, Tensor]:
        r"""A graph from edges in any order; repeated edges are merged.

        The graph has an order of its own, by query and then by key, and all values on edges that
        go with it (``edge_bias``, ``edge_gate``, attention weights) are in that order. Whoever has
        values in the order given asks for the permutation between the two.

        Args are those of :class:`BipartiteGraph`. Copies of one edge must agree on their
        ``edge_prob``, of which one is kept.

        Args:
            return_perm (bool): Return ``(graph, perm)`` with ``edge_index[:, perm]`` equal to
                ``graph.edge_index``, so that ``values[perm]`` are on the graph's edges. Then no
                edge may be repeated.

        Raises:
            ValueError: Also, as :class:`RepeatedEdges`, if ``return_perm`` meets one.

        Example:
            >>> import torch
            >>> from graphattn import BipartiteGraph
            >>> edge_index = torch.tensor([[2, 0, 1], [1, 0, 0]])  # key over query, in any order
            >>> weight = torch.tensor([.1, .2, .3])                # on these edges
            >>> graph, perm = BipartiteGraph.from_edge_index(edge_index, 2, 3, return_perm=True)
            >>> graph.edge_index.as_tensor(), weight[perm]
            (tensor([[0, 1, 2],
                    [0, 0, 1]]), tensor([0.2000, 0.3000, 0.1000]))
        """
        num_keys = num_queries if num_keys is None else num_keys
        check_edge_index(edge_index)
        check_size('num_queries', num_queries)
        check_size('num_keys', num_keys)
        check_num_pairs(num_queries, num_keys)
        check_bool(return_perm=return_perm)
        counted = None
        if return_perm and edge_prob is None:
            counted = sort_edges_by_counting(_plain(edge_index), int(num_queries), int(num_keys))
        if counted is None:
            check_range(edge_index, num_queries, num_keys)
        if edge_prob is not None:
            check_edge_prob(edge_prob, edge_index.size(1), edge_index.device)
        blocks = Blocks.of(query_ptr, key_ptr, (num_queries, num_keys), edge_index.device)
        if counted is not None:
            indptr, key, perm, is_reordered = counted
            graph = cls._of(indptr, key, int(num_keys), blocks, None, is_reordered)
            graph._validate_values()
            return graph, perm
        given = number_pairs(*_plain(edge_index), num_keys)
        if return_perm or edge_prob is not None:
            perm = order_pairs(given, num_queries * num_keys)
            pair = given[perm]
            is_first = first_of_each(pair)
            if return_perm and not bool(is_first.all()):
                raise RepeatedEdges(f"'edge_index' must hold each edge once to be permuted, as "
                                    f"'return_perm' asks (got {given.numel()} edges, "
                                    f"{int(is_first.sum())} of them different)")
            edge_prob = None if edge_prob is None else _one_of_each(edge_prob[perm], is_first)
            pair = pair if return_perm else pair[is_first]
        else:
            pair = sort_pairs(given)
        graph = cls._of(*rows_of_pairs(pair, int(num_queries), int(num_keys)), int(num_keys),
                        blocks, edge_prob, not torch.equal(pair, given))
        graph._validate_values()
        return (graph, perm) if return_perm else graph

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
        """A graph from its rows.

        Args:
            indptr (Tensor): Where each query's edges begin, int64 ``[num_queries + 1]``.
            key (Tensor): The key of each edge, of an integer dtype, ``[num_edges]``; ascending
                among the edges of a query, and counted over all blocks.
            num_keys (int, optional): Number of keys; as many as queries if omitted.
            edge_prob, query_ptr, key_ptr: As in :class:`BipartiteGraph`.
            validate (bool): Check all of it in O(num_edges). Pass ``False`` only for rows that
                the caller has just built, of tensors that nobody else will change.
        """
        check_bool(validate=validate)
        if validate:
            check_rows(indptr, key, num_keys)
            indptr, key = indptr.clone(), key.clone()
        num_queries = indptr.numel() - 1
        num_keys = num_queries if num_keys is None else num_keys
        check_num_pairs(num_queries, num_keys)
        blocks = Blocks.of(query_ptr, key_ptr, (num_queries, num_keys), indptr.device,
                           validate=validate)
        num_keys = num_keys if is_traced(indptr) else int(num_keys)  # which an export would fix
        graph = cls._of(indptr, key, num_keys, blocks, edge_prob)
        if validate:
            graph._validate_values()
        return graph

    @classmethod
    def from_pairs(cls, pair: Tensor, num_queries: int, num_keys: int, *,
                   query_ptr: Tensor | None = None,
                   key_ptr: Tensor | None = None) -> BipartiteGraph:
        """A graph from the numbers ``query * num_keys + key`` of its edges, int64 ``[num_edges]``,
        ascending, each once. Nothing is checked."""
        blocks = Blocks.of(query_ptr, key_ptr, (num_queries, num_keys), pair.device,
                           validate=False)
        return cls._of(*rows_of_pairs(pair, num_queries, num_keys), num_keys, blocks, None)

    @classmethod
    def from_mask(cls, mask: Tensor) -> BipartiteGraph:
        """A graph from a mask, boolean with ``True`` where a query attends, or floating with 0
        there and ``-inf``, or the least number of its dtype, elsewhere.

        This is the polarity of ``scaled_dot_product_attention`` and of Hugging Face. The boolean
        masks of ``torch.nn.MultiheadAttention`` mean the opposite: pass ``~mask``.

        Args:
            mask (Tensor): ``[query, key]``; or ``[batch, heads, query, key]``, which gives a block
                for each sequence, the sequences of the first head first. With one head that is the
                graph of all heads.

        Raises:
            TypeError: It is neither boolean nor floating.
            ValueError: It is of another shape, or holds something else.

        Example:
            >>> import torch
            >>> from graphattn import BipartiteGraph
            >>> BipartiteGraph.from_mask(torch.ones(2, 1, 3, 3).tril().log())
            BipartiteGraph(num_queries=6, num_keys=6, num_edges=12, num_blocks=2, density=66.7%)
        """
        edge_index, sizes = conversions.edges_of_mask(mask)
        ptrs = _equal_blocks(*sizes, edge_index.device)
        return BipartiteGraph(edge_index, sizes[0] * sizes[1], sizes[0] * sizes[2], **ptrs,
                              validate=False)

    @classmethod
    def from_topk(cls, indices: Tensor, num_keys: int | None = None) -> BipartiteGraph:
        """A graph from the keys that each query names, as ``topk`` gives them.

        Args:
            indices (Tensor): Integers ``[query, k]``, or ``[batch, query, k]`` with a block for
                each sequence, in which keys count from 0. A negative number names no key, and a
                key named twice is one edge.
            num_keys (int, optional): Keys of each block; as many as queries if omitted.

        Raises:
            TypeError: ``indices`` are not integers.
            ValueError: They are of another shape, or beyond the keys.

        Example:
            >>> import torch
            >>> from graphattn import BipartiteGraph
            >>> scores = torch.tensor([[3., 1., 2.], [0., 5., 4.]])
            >>> BipartiteGraph.from_topk(scores.topk(2).indices, num_keys=3).to_mask().int()
            tensor([[1, 0, 1],
                    [0, 1, 1]], dtype=torch.int32)
        """
        pair, sizes = conversions.pairs_of_topk(indices, num_keys)
        return cls.from_pairs(sort_pairs(pair), sizes[0] * sizes[1], sizes[0] * sizes[2],
                              **_equal_blocks(*sizes, pair.device))

    @classmethod
    def from_scipy(cls, matrix: sp.sparray | sp.spmatrix) -> BipartiteGraph:
        """A graph from a scipy sparse matrix ``[query, key]``; its nonzero entries are edges."""
        return cls.from_edge_index(conversions.edges_of_scipy(matrix), *matrix.shape)

    @classmethod
    def from_networkx(cls, graph: nx.Graph) -> BipartiteGraph:
        """A graph from networkx, nodes numbered in the order of ``graph.nodes``.

        An edge ``(j, i)`` means that query ``i`` attends to key ``j``; an undirected edge means
        both. If every node carries networkx's ``bipartite`` attribute, nodes with 0 are the keys
        and nodes with 1 the queries.

        Raises:
            ValueError: An edge of a bipartite graph does not run from a key to a query, or only
                some nodes carry the attribute.
        """
        return cls.from_edge_index(*conversions.edges_of_networkx(graph))

    @classmethod
    def from_data(cls, data: Data | HeteroData,
                  edge_type: tuple[str, str, str] | None = None) -> BipartiteGraph:
        """Return the graph of a PyG ``Data``, ``HeteroData`` or batch of such.

        The source of an edge is its key and the target its query, as in PyG. The graphs of a batch
        become blocks. Repeated edges are merged.

        Args:
            data (Data or HeteroData): With an ``edge_index``.
            edge_type (tuple of str, optional): Which edges of a ``HeteroData``; may be omitted
                where it has one type alone.

        Raises:
            TypeError: ``data`` is of another kind.
            ValueError: It has no ``edge_index``, no such type, or an edge out of range.

        Example:
            >>> import torch
            >>> from torch_geometric.data import Batch, Data
            >>> from graphattn import BipartiteGraph
            >>> molecule = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
            >>> BipartiteGraph.from_data(Batch.from_data_list([molecule, molecule]))
            BipartiteGraph(num_queries=4, num_keys=4, num_edges=4, num_blocks=2, density=50.0%)
        """
        return cls.from_edge_index(**conversions.edges_of_data(data, edge_type))

    @classmethod
    def batch(cls, graphs: Sequence[BipartiteGraph]) -> BipartiteGraph:
        """The disjoint union of ``graphs``, which keeps the blocks of each in order.

        Raises:
            ValueError: No graph is given, some carry ``edge_prob`` and others do not, or they
                are on different devices.
        """
        graphs = _check_can_be_joined(graphs)
        if len(graphs) == 1:
            return graphs[0]  # which is a value, and need not be held twice
        num_keys = sum(graph.num_keys for graph in graphs)
        key = narrow(graphs[0]._key.new_empty(sum(graph.num_edges for graph in graphs)), num_keys)
        end = start = 0
        for graph in graphs:
            part, end = key[end:end + graph.num_edges], end + graph.num_edges
            part.copy_(graph.key.add_(start))
            start += graph.num_keys
        blocks = Blocks.join([graph.blocks for graph in graphs],
                             [(graph.num_queries, graph.num_keys) for graph in graphs])
        with_prob = graphs[0].edge_prob is not None
        indptr = join_ptrs([graph.indptr for graph in graphs],
                           [graph.num_edges for graph in graphs])
        return cls._of(indptr, key, num_keys, blocks,
                       torch.cat([graph.edge_prob for graph in graphs]) if with_prob else None,
                       any(graph.is_reordered for graph in graphs))

    @looks_once
    def unbatch(self) -> list[BipartiteGraph]:
        """The blocks as graphs: what :meth:`batch` has joined."""
        return [self.block(number) for number in range(self.num_blocks)]

    @looks_once
    def block(self, sequence: int, head: int = 0, *, heads: int = 1) -> BipartiteGraph:
        """The graph of one sequence, and of one head if each owns a graph.

        Args:
            sequence (int): Which of the sequences.
            head (int): Which of the heads.
            heads (int): How many heads own a graph each; their blocks are the sequences of head 0,
                then those of head 1, ...

        Raises:
            TypeError: An argument is not an int.
            ValueError: There are not as many sequences or heads, or ``heads`` does not divide the
                blocks.

        Example:
            >>> from graphattn import BipartiteGraph
            >>> from graphattn.patterns import Full, SlidingWindow
            >>> graph = BipartiteGraph.batch([Full().build(2), SlidingWindow(0).build(3)])
            >>> graph.block(1)
            BipartiteGraph(num_queries=3, num_keys=3, num_edges=3, density=33.3%)
        """
        check_sides(heads=heads)
        if self.num_blocks % heads:
            raise ValueError(f"'heads' must divide the {self.num_blocks} blocks (got {heads})")
        num_sequences = self.num_blocks // heads
        check_size('sequence', sequence, at_most=num_sequences - 1)
        check_size('head', head, at_most=heads - 1)
        number = head * num_sequences + sequence
        (first_query, last_query), (first_key, last_key) = (
            on_cpu(ptr)[number:number + 2].tolist() for ptr in self._blocks.ptrs)
        first, last = on_cpu(self._indptr)[[first_query, last_query]].tolist()
        edge_prob = None if self.edge_prob is None else self.edge_prob[first:last]
        num_keys = last_key - first_key
        blocks = Blocks.of(None, None, (last_query - first_query, num_keys), self.device)
        return self._of(self._indptr[first_query:last_query + 1] - first,
                        self._key[first:last].long() - first_key, num_keys, blocks, edge_prob,
                        self._is_reordered)

    # What it is ######################################################################

    @property
    def csr(self) -> tuple[Tensor, Tensor]:
        """The rows that are kept, which kernels read: where each query's edges begin, int64
        ``[num_queries + 1]``, and the key of each edge in as few bytes as are enough, uint16,
        int32 or int64. They are the graph's own: do not change them."""
        return self._indptr, self._key

    @property
    def csc(self) -> tuple[Tensor, Tensor, Tensor]:
        """The edges sorted by key, kept from the first use on: where each key's edges begin, int64
        ``[num_keys + 1]``; the query of each edge, uint16, int32 or int64; and the permutation
        ``[num_edges]`` that takes edges there from the order by query, int32 or int64."""
        if self._csc is not None:
            return self._csc
        csc = csc_of_rows(self._indptr, self._key, self._num_keys)
        if not torch.compiler.is_compiling():  # compiled code must not change objects
            self._csc = csc = tuple(map(lasting, csc))
        return csc

    @property
    def block_mask(self) -> BlockMask:
        """The mask of :meth:`to_block_mask`, compact except on CPUs; kept from the first use on."""
        if self._block_mask is None:
            with undisturbed():
                self._block_mask = self.to_block_mask(is_compact=self.device.type != 'cpu')
        return self._block_mask

    @property
    def edge_index(self) -> EdgeIndex:
        """PyG ``EdgeIndex`` ``[2, num_edges]`` of size (num_keys, num_queries), sorted by query."""
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
        """Where each query's edges begin, int64 ``[num_queries + 1]``: the CSR row pointer."""
        return self._indptr.clone()

    @property
    def edge_prob(self) -> Tensor | None:
        """The probability with which each edge was drawn, ``[num_edges]``, or ``None``."""
        return self._edge_prob

    @property
    def edge_gate(self) -> Tensor | None:
        """Ones ``[num_edges]`` that carry the gradient of :attr:`edge_prob`, or ``None``. They are
        one number in memory."""
        return None if self._edge_prob is None else constant_of(self._edge_prob, 1.)

    @property
    def blocks(self) -> Blocks:
        """Which queries and keys belong together."""
        return self._blocks

    @property
    def query_ptr(self) -> Tensor:
        """Where each block's queries begin, int64 ``[num_blocks + 1]``."""
        return self._blocks.query_ptr.clone()

    @property
    def key_ptr(self) -> Tensor:
        """Where each block's keys begin, int64 ``[num_blocks + 1]``."""
        return self._blocks.key_ptr.clone()

    @property
    def num_queries(self) -> int:
        """Number of queries over all blocks."""
        return self._indptr.numel() - 1

    @property
    def num_keys(self) -> int:
        """Number of keys over all blocks."""
        return self._num_keys

    @property
    def num_edges(self) -> int:
        """Number of (query, key) pairs that attend."""
        return self._key.numel()

    @property
    def num_pairs(self) -> int:
        """Number of (query, key) pairs inside the blocks."""
        is_one_block = self.num_blocks == 1
        return self.num_queries * self.num_keys if is_one_block else self._blocks.num_pairs

    @property
    def num_blocks(self) -> int:
        """Number of sequences, times the heads if each owns a graph."""
        return self._blocks.query_ptr.size(0) - 1  # len would fix it in exported code

    @property
    def is_square(self) -> bool:
        """Whether every block has as many keys as queries, which then can be the same tokens."""
        return self._blocks.is_square

    @property
    def is_reordered(self) -> bool:
        """Whether the edges were given in another order, or more than once: values in the order
        given are not on the edges of the graph (:meth:`from_edge_index`)."""
        return self._is_reordered

    @property
    def nbytes(self) -> int:
        """Bytes that the graph holds, the order by key and the tiles included once they were
        used."""
        held = [self._indptr, self._key, *self._blocks.ptrs, *(self._csc or ())]
        if self._block_mask is not None:
            held += conversions.tensors_of_block_mask(self._block_mask)
        held += [self._edge_prob] if isinstance(self._edge_prob, Tensor) else []
        return sum(tensor.nbytes for tensor in held)

    @property
    def device(self) -> torch.device:
        """The device of the edges."""
        return self._key.device

    def in_degree(self) -> Tensor:
        """How many keys each query attends to, int64 ``[num_queries]``."""
        return self._indptr.diff()

    def out_degree(self) -> Tensor:
        """How many queries attend to each key, int64 ``[num_keys]``."""
        return torch.bincount(self.key, minlength=self.num_keys)

    def density(self, per_block: bool = False) -> float | Tensor:
        """The share of the (query, key) pairs inside the blocks that are edges.

        Args:
            per_block (bool): One value for each block.

        Returns:
            float, or float64 Tensor ``[num_blocks]``. A block without pairs has density 0.
        """
        check_bool(per_block=per_block)
        if not per_block:
            return self.num_edges / max(self.num_pairs, 1)
        return self.edges_per_block().double() / self._blocks.pairs_per_block().clamp(min=1)

    def edges_per_block(self) -> Tensor:
        """How many edges each block has, int64 ``[num_blocks]``."""
        return self._indptr[self._blocks.query_ptr].diff()

    def validate(self) -> BipartiteGraph:
        """Checks every promise of the constructor in O(num_edges) and returns the graph."""
        check_rows(self._indptr, self._key, self.num_keys)
        self._validate_values()
        return self

    def check_unchanged(self) -> None:
        """Raise a ValueError if a tensor of the graph was changed in place.

        Compiled loops trust the edges, and would read outside of the tensors. Changes through
        ``.data`` leave no trace: do not make any.
        """
        before, now = self._versions, self._current_versions()
        if None not in (before, now) and before != now:
            raise ValueError("'graph' was changed in place after it was built, but a graph is a "
                             "value; build another one from the changed edges")

    # Set algebra #####################################################################

    def __or__(self, other: BipartiteGraph) -> BipartiteGraph:
        """Edges of either graph. Set operations drop ``edge_prob``: their law is another one."""
        self._check_same_shape(other, '|')
        return self._with_pairs(sort_pairs(torch.cat([self._pairs(), other._pairs()])))

    def __and__(self, other: BipartiteGraph) -> BipartiteGraph:
        """Edges of both graphs."""
        self._check_same_shape(other, '&')
        return self._with_pairs(self._pairs()[self.isin(other)])

    def __sub__(self, other: BipartiteGraph) -> BipartiteGraph:
        """Edges of this graph that the other lacks."""
        self._check_same_shape(other, '-')
        return self._with_pairs(self._pairs()[~self.isin(other)])

    def isin(self, other: BipartiteGraph) -> Tensor:
        """Which of this graph's edges ``other`` has too, bool ``[num_edges]``."""
        check_kind('other', other, BipartiteGraph)
        self._check_same_shape(other, 'isin')
        return find_pairs(self._pairs(), other._pairs())

    def select_edges(self, keep: Tensor) -> BipartiteGraph:
        """The edges for which ``keep`` is ``True``, with their probabilities and these with their
        gradient.

        Args:
            keep (Tensor): bool ``[num_edges]``, in the order of :attr:`edge_index`.
        """
        if not isinstance(keep, Tensor) or keep.dtype != torch.bool:
            kind = keep.dtype if isinstance(keep, Tensor) else type(keep).__name__
            raise TypeError(f"'keep' must be a boolean Tensor (got {kind})")
        check_on_edges('keep', keep, self.num_edges)
        if keep.device != self.device:
            raise ValueError(f"'keep' must be on {self.device}, where the graph is (got "
                             f"{keep.device})")
        before = torch.cat([keep.new_zeros(1, dtype=torch.long), keep.cumsum(0)])
        edge_prob = None if self.edge_prob is None else self.edge_prob[keep]
        key = self.key[keep]  # which torch cannot do with uint16
        return BipartiteGraph._of(before[self._indptr], key, self._num_keys, self._blocks,
                                  edge_prob, self._is_reordered)

    def with_self_loops(self) -> BipartiteGraph:
        """Lets every query attend to its own token; needs as many keys as queries per block."""
        self._check_square('with_self_loops')
        token = torch.arange(self.num_queries, device=self.device)
        return self._with_pairs(sort_pairs(torch.cat([self._pairs(),
                                                      token * (self.num_keys + 1)])))

    def without_self_loops(self) -> BipartiteGraph:
        """Lets no query attend to its own token; needs as many keys as queries per block."""
        self._check_square('without_self_loops')
        return self._with_pairs(self._pairs()[self.key != self.query])

    def causal(self) -> BipartiteGraph:
        """Lets no query attend to a later token; needs as many keys as queries per block. The edges
        that are left keep their probabilities."""
        self._check_square('causal')
        return self.select_edges(self.key <= self.query)

    def transpose(self) -> BipartiteGraph:
        """The graph in which keys and queries have changed places."""
        key_indptr, query, perm = self.csc
        edge_prob = None if self.edge_prob is None else self.edge_prob[perm]
        return self._of(key_indptr.clone(), query.clone(), self.num_queries,
                        self._blocks.transpose(), edge_prob)

    # Order of the nodes ##############################################################

    def nearby_order(self) -> Tensor:
        """An order of the tokens in which those that attend to one another lie near, int64
        ``[num_queries]``: reverse Cuthill-McKee, within each block, in O(edges). Needs as many
        keys as queries per block.

        Kernels follow edges faster where a query's keys share the cache with its neighbours'.
        It is found for graphs that have such an order: a band, clusters with few edges between
        them. Edges drawn uniformly have none. ``python -m experiments.benchmarks.ordering`` says
        what is gained.

        Example:
            >>> import torch
            >>> from graphattn.patterns import SlidingWindow
            >>> shuffled = torch.tensor([3, 0, 2, 4, 1])
            >>> graph = SlidingWindow(1).build(5).reorder(shuffled)
            >>> order = graph.nearby_order()
            >>> graph.reorder(order) == SlidingWindow(1).build(5)
            True
            >>> x = torch.randn(5, 8)         # tokens of ``graph``
            >>> nearby = x[order]             # of ``graph.reorder(order)``
            >>> back = nearby[order.argsort()]
        """
        self._check_square('nearby_order')
        order = conversions.cuthill_mckee_of_rows(self._indptr, self.key, self.num_keys)
        block = torch.repeat_interleave(self._blocks.query_ptr.diff())
        return order[block[order].argsort(stable=True)]

    def reorder(self, query_order: Tensor, key_order: Tensor | None = None) -> BipartiteGraph:
        """The same edges among nodes in another order: query ``i`` of the new graph is query
        ``query_order[i]`` of this one. Edges keep their probabilities.

        Args:
            query_order (Tensor): Each query once, in its block, int64 ``[num_queries]``.
            key_order (Tensor, optional): Each key once, in its block, int64 ``[num_keys]``;
                ``query_order`` if omitted, which needs as many keys as queries per block.
        """
        check_order('query_order', query_order, self._blocks.query_ptr)
        if key_order is None:
            self._check_square('reorder', hint="; or give 'key_order'")
            key_order = query_order
        check_order('key_order', key_order, self._blocks.key_ptr)
        key_place, query_place = key_order.argsort(), query_order.argsort()
        pair, perm = torch.sort(number_pairs(key_place[self.key], query_place[self.query],
                                             self.num_keys))
        edge_prob = None if self.edge_prob is None else self.edge_prob[perm]
        return self._of(*rows_of_pairs(pair, self.num_queries, self.num_keys), self.num_keys,
                        self._blocks, edge_prob, True)

    def __eq__(self, other: object) -> bool:
        """Same sizes, blocks, edges and edge probabilities."""
        if not isinstance(other, BipartiteGraph):
            return NotImplemented
        if self.device != other.device or (self.edge_prob is None) != (other.edge_prob is None):
            return False
        if self._key.is_meta:
            raise ValueError("'==' needs graphs whose numbers can be compared (got two on meta)")
        return (self._same_shape(other) and torch.equal(self._indptr, other._indptr)
                and torch.equal(self._key, other._key)
                and (self.edge_prob is None or torch.equal(self.edge_prob, other.edge_prob)))

    __hash__ = None

    # Conversions #####################################################################

    def to(self, device: torch.device | str) -> BipartiteGraph:
        """The graph on ``device``."""
        device = check_device(device)
        if device == self.device:
            return self
        edge_prob = None if self.edge_prob is None else self.edge_prob.to(device)
        return self._of(self._indptr.to(device), self._key.to(device), self.num_keys,
                        self._blocks.to(device), edge_prob, self._is_reordered)

    def with_edge_prob(self, edge_prob: Tensor | None) -> BipartiteGraph:
        """The same edges with other probabilities, ``[num_edges]``, or with none."""
        if edge_prob is not None:
            check_edge_prob(edge_prob, self.num_edges, self.device)
        graph = self._of(self._indptr, self._key, self.num_keys, self._blocks, edge_prob,
                         self._is_reordered)
        graph._csc, graph._block_mask = self._csc, self._block_mask
        return graph

    def to_mask(self) -> Tensor:
        """A boolean mask ``[num_queries, num_keys]``, ``True`` where a query attends."""
        mask = torch.zeros(self.num_queries, self.num_keys, dtype=torch.bool, device=self.device)
        mask[self.query, self.key] = True
        return mask

    def to_scipy(self, edge_weight: Tensor | None = None) -> sp.csr_array:
        """A float64 CSR array ``[query, key]`` of ones, or of ``edge_weight`` ``[num_edges]``."""
        self._check_weight(edge_weight)
        return conversions.scipy_of_rows(self._indptr, self.key, self.num_keys, edge_weight)

    def to_networkx(self, bipartite: bool = False) -> nx.DiGraph:
        """A directed networkx graph whose edge ``(j, i)`` means that query i attends to key j.

        Args:
            bipartite (bool): Nodes are ``('key', j)`` and ``('query', i)`` with networkx's
                ``bipartite`` attribute (0 and 1). Otherwise key and query i are the one node
                ``i``, which needs as many keys as queries.
        """
        check_bool(bipartite=bipartite)
        edge_index = torch.stack([self.key, self.query])
        if bipartite:
            return conversions.networkx_of_parts(edge_index, self.num_queries, self.num_keys)
        self._check_square('to_networkx', hint='; or pass bipartite=True')
        return conversions.networkx_of_tokens(edge_index, self.num_queries)

    def to_data(self, bipartite: bool = False) -> Data | HeteroData:
        """Return PyG's ``Data`` with ``edge_index`` and ``num_nodes``, ``batch`` and ``ptr`` of
        several blocks, and ``edge_prob`` where there is one.

        Args:
            bipartite (bool): Return ``HeteroData`` instead, whose edges ``('key', 'to', 'query')``
                join nodes of two types. Otherwise key and query i are the one node i, which needs
                as many keys as queries in each block.

        Raises:
            ValueError: ``bipartite`` is false, and some block has another number of keys.
        """
        check_bool(bipartite=bipartite)
        if not bipartite:
            self._check_square('to_data', hint='; or pass bipartite=True')
        return conversions.data_of_edges(torch.stack([self.key, self.query]), self.blocks.ptrs,
                                         self.edge_prob, bipartite)

    def to_sparse_tensor(self, edge_weight: Tensor | None = None) -> SparseTensor:
        """A ``torch_sparse.SparseTensor`` ``[query, key]``: PyG's transposed adjacency ``adj_t``.

        Raises:
            ImportError: torch-sparse is not installed.
        """
        self._check_weight(edge_weight)
        return conversions.sparse_tensor_of_rows(self._indptr, self.query, self.key, self.num_keys,
                                                 edge_weight)

    def to_block_mask(self, heads: int = 1, tile: int = 128, *,
                      is_compact: bool = False) -> BlockMask:
        """FlexAttention's ``BlockMask`` ``[1, heads, query, key]``, without a look at all pairs.

        It holds the tiles that have edges, a bit for each pair of those that are not full, and 4
        bytes for any tile. The backend ``'flex'`` attends by it.

        ``flex_attention`` computes every tile that holds an edge: a tenth of a percent of pairs
        that lie anywhere fills about all of them. :meth:`nearby_order` may bring them together.

        Args:
            heads (int): Heads that own a graph each, which are folded into the nodes; with 1 all
                heads share the mask.
            tile (int): Queries and keys of a tile, which FlexAttention calls a block.
            is_compact (bool): Make the lists as wide as the fullest row of tiles, in O(edges).
                ``flex_attention`` on CUDA takes them so. All else of torch (``str``, ``to_dense``
                and slices of a mask, the compiler for CPUs) wants them as wide as all tiles.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: It is below 1, or the graph is not one of so many heads.

        Example:
            >>> from graphattn.patterns import SlidingWindow
            >>> SlidingWindow(64).build(1024).to_block_mask().shape
            (1, 1, 1024, 1024)
        """
        check_sides(heads=heads, tile=tile)
        check_bool(is_compact=is_compact)
        if self.num_queries % heads or self.num_keys % heads:
            raise ValueError(f"'heads' must divide the nodes of the graph (got {heads} and {self})")
        return conversions.block_mask_of_rows(self._indptr, self.key, self.num_keys, heads, tile,
                                              is_compact)

    def to_flashinfer(self) -> dict[str, Tensor | int]:
        """What ``flashinfer.BlockSparseAttentionWrapper.plan`` takes of a graph: the rows as tiles
        of one query and one key, int32 ``indptr`` and ``indices``, and the sizes ``M``, ``N``,
        ``R`` and ``C``.

        Raises:
            ValueError: There are 2^31 edges or keys, or more.
        """
        if max(self.num_edges, self.num_keys) >= 2**31:
            raise ValueError(f"FlashInfer counts in int32, which has no numbers for {self}")
        return {'indptr': self._indptr.int(), 'indices': self._key.int(), 'M': self.num_queries,
                'N': self.num_keys, 'R': 1, 'C': 1}

    def __repr__(self) -> str:
        blocks = f', num_blocks={self.num_blocks}' if self.num_blocks != 1 else ''
        return (f'{type(self).__name__}(num_queries={self.num_queries}, num_keys={self.num_keys}, '
                f'num_edges={self.num_edges}{blocks}, density={self.density():.1%})')

    def _repr_html_(self) -> str:
        from graphattn import draw

        return draw.html(self, repr(self))

    # Internals #######################################################################

    def __getstate__(self) -> dict[str, Any]:
        edge_prob = None if self.edge_prob is None else self.edge_prob.detach()
        # torch cannot pickle uint16.
        key = self._key.view(torch.int16) if self._key.dtype == torch.uint16 else self._key
        return dict(zip(_STATE, (self._indptr, key, self._num_keys, *self._blocks.ptrs, edge_prob,
                                 self._is_reordered)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        # It may come from a file, so that nothing is used before it was checked.
        if not isinstance(state, dict) or state.keys() != set(_STATE):
            raise ValueError(f"a BipartiteGraph is saved as {', '.join(_STATE)} (got "
                             f"{', '.join(map(str, state))}); was another version the writer?")
        indptr, key, num_keys, query_ptr, key_ptr, edge_prob, is_reordered = (
            state[name] for name in _STATE)
        if isinstance(key, Tensor) and key.dtype == torch.int16:
            key = key.view(torch.uint16)
        check_size('num_keys', num_keys)
        check_rows(indptr, key, num_keys)
        check_num_pairs(indptr.numel() - 1, num_keys)
        blocks = Blocks.of(query_ptr, key_ptr, (indptr.numel() - 1, num_keys), key.device)
        check_bool(is_reordered=is_reordered)
        self._fill(indptr.contiguous(), key.contiguous(), num_keys, blocks, edge_prob, is_reordered)
        self._validate_values()

    def _pairs(self) -> Tensor:
        return number_pairs(self.key, self.query, self.num_keys)

    def _with_pairs(self, pair: Tensor) -> BipartiteGraph:
        return self._of(*rows_of_pairs(pair, self.num_queries, self.num_keys), self.num_keys,
                        self._blocks, None)

    def _current_versions(self) -> list[int] | None:
        if is_traced(self._key):
            return None
        parts = [self._indptr, self._key, *self._blocks.ptrs]
        parts += [self._edge_prob] if isinstance(self._edge_prob, Tensor) else []
        return [0 if part.is_inference() else part._version for part in parts]

    def _same_shape(self, other: BipartiteGraph) -> bool:
        return ((self.num_queries, self.num_keys) == (other.num_queries, other.num_keys)
                and self._blocks == other._blocks)

    def _check_same_shape(self, other: BipartiteGraph, operation: str) -> None:
        if not isinstance(other, BipartiteGraph):
            raise TypeError(f"'{operation}' needs two BipartiteGraphs (got "
                            f"{type(other).__name__})")
        if self.device != other.device:
            raise ValueError(f"'{operation}' needs graphs on one device (got {self.device} and "
                             f"{other.device}); move one with .to(device)")
        if not self._same_shape(other):
            raise ValueError(f"'{operation}' needs graphs of equal sizes and blocks (got {self} "
                             f"and {other})")

    def _check_weight(self, edge_weight: Tensor | None) -> None:
        if edge_weight is not None:
            check_on_edges('edge_weight', edge_weight, self.num_edges)

    def _check_square(self, method: str, hint: str = '') -> None:
        if not self.is_square:
            raise ValueError(f"'{method}' needs as many keys as queries in each block (got "
                             f"{self}){hint}")

    def _validate_values(self) -> None:
        if self.edge_prob is not None:
            check_edge_prob(self.edge_prob, self.num_edges, self.device)
        if self.num_blocks > 1:
            check_blocks_of_rows(self._indptr, self.key, *self._blocks.ptrs)


_STATE = ('indptr', 'key', 'num_keys', 'query_ptr', 'key_ptr', 'edge_prob', 'is_reordered')


def _plain(edge_index: Tensor) -> Tensor:
    if type(edge_index) is Tensor:  # without loading PyG, which takes seconds
        return edge_index
    from torch_geometric import EdgeIndex

    return edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index


def _one_of_each(edge_prob: Tensor, is_first: Tensor) -> Tensor:
    if bool((edge_prob[1:] != edge_prob[:-1])[~is_first[1:]].any()):
        raise ValueError("'edge_prob' differs between copies of the same edge; give each edge once")
    return edge_prob[is_first]


def _check_can_be_joined(graphs: Iterable[BipartiteGraph]) -> list[BipartiteGraph]:
    if not isinstance(graphs, Iterable):
        raise TypeError(f"'graphs' must be BipartiteGraphs (got {type(graphs).__name__})")
    graphs = list(graphs)
    if not graphs:
        raise ValueError("'graphs' is empty; give at least one BipartiteGraph")
    for graph in graphs:
        if not isinstance(graph, BipartiteGraph):
            raise TypeError(f"'graphs' must be BipartiteGraphs (got {type(graph).__name__})")
        if graph.device != graphs[0].device:
            raise ValueError(f"'graphs' must be on one device (got {graphs[0].device} and "
                             f"{graph.device}); move one with .to(device)")
    with_prob = sum(graph.edge_prob is not None for graph in graphs)
    if with_prob not in (0, len(graphs)):
        raise ValueError(f"'graphs' must all carry edge_prob or none (got {with_prob} of "
                         f"{len(graphs)})")
    return graphs


def _equal_blocks(num_blocks: int, num_queries: int, num_keys: int,
                  device: torch.device) -> dict[str, Tensor]:
    """Pointers of blocks of one size each."""
    block = torch.arange(num_blocks + 1, device=device)
    return {'query_ptr': block * num_queries, 'key_ptr': block * num_keys}


# Compiled and exported code takes a graph as the tensors that it is made of.


@dataclass(frozen=True)
class _Sizes:
    """What an exported program takes graphs of, in whatever order their edges were given."""

    num_keys: int
    is_reordered: bool = field(compare=False)
    num_pairs: int | None
    is_square: bool | None


def _flatten(graph: BipartiteGraph) -> tuple[list[Tensor], _Sizes]:
    edge_prob = [] if graph.edge_prob is None else [graph.edge_prob]
    blocks, ptrs = graph.blocks, graph.blocks.ptrs
    # Other things than tensors may stand for the parts: they are not looked at.
    can_look = all(isinstance(ptr, Tensor) for ptr in ptrs) and not is_traced(*ptrs)
    of_blocks = (blocks.num_pairs, blocks.is_square) if can_look else blocks.known()
    return [*graph.csr, *ptrs, *edge_prob], _Sizes(graph.num_keys, graph.is_reordered, *of_blocks)


def _flatten_with_keys(graph: BipartiteGraph) -> tuple[list[tuple], _Sizes]:
    parts, sizes = _flatten(graph)
    # torch.export takes a name that begins another for a part of it.
    names = ('indptr', 'edge_key', 'query_ptr', 'key_ptr', 'edge_prob')
    return [(_pytree.GetAttrKey(name), part) for name, part in zip(names, parts)], sizes


def _unflatten(parts: list[Tensor], sizes: _Sizes) -> BipartiteGraph:
    indptr, key, query_ptr, key_ptr, *edge_prob = parts
    graph, blocks = BipartiteGraph.__new__(BipartiteGraph), Blocks.__new__(Blocks)
    of_blocks = {'query_ptr': query_ptr, 'key_ptr': key_ptr, '_num_pairs': sizes.num_pairs,
                 '_is_square': sizes.is_square}
    of_graph = {'_indptr': indptr, '_key': key, '_num_keys': sizes.num_keys, '_blocks': blocks,
                '_edge_prob': edge_prob[0] if edge_prob else None,
                '_is_reordered': sizes.is_reordered, '_csc': None, '_block_mask': None,
                '_versions': None}
    for made, parts in ((blocks, of_blocks), (graph, of_graph)):
        for name, part in parts.items():  # torch 2.11 cannot compile vars().update
            setattr(made, name, part)
    return graph


def register_as_tensors(kind: type[BipartiteGraph]) -> None:
    """Let compiled and exported code take graphs of this class for those of the base class."""
    _pytree.register_pytree_node(kind, _flatten, _unflatten,
                                 serialized_type_name=f'graphattn.{kind.__name__}',
                                 to_dumpable_context=astuple,
                                 from_dumpable_context=lambda sizes: _Sizes(*sizes),
                                 flatten_with_keys_fn=_flatten_with_keys)


register_as_tensors(BipartiteGraph)
torch.serialization.add_safe_globals([BipartiteGraph])  # what is loaded is validated
