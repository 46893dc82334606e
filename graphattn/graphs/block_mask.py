"""Graphs as masks of FlexAttention, which store the tiles that have edges, and a bit for each pair
in partly filled tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphattn._checks import check_bool, check_sides

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from graphattn.graphs.graph import BipartiteGraph

WORD = 32  # bits


def to_block_mask(self: BipartiteGraph, heads: int = 1, tile: int = 128, *,
                  is_compact: bool = False) -> BlockMask:
    """Return FlexAttention's ``BlockMask`` ``[1, heads, query, key]`` without enumerating all
    pairs.

    The mask stores the tiles that have edges, a bit for each pair of partly filled tiles, and 4
    bytes for every tile.

    ``flex_attention`` computes all pairs of every tile that has an edge. At a density of 0.1 %,
    random edges reach almost all tiles. :meth:`nearby_order` may concentrate edges in fewer tiles.

    Args:
        heads (int): Number of heads that are folded into the nodes, if each head has its own graph.
            With 1, all heads share the mask.
        tile (int): Number of queries, and number of keys, of a tile: FlexAttention's block size.
        is_compact (bool): Whether ``kv_indices`` and the other index tensors have only as many
            columns as the fullest row has tiles, which saves memory. ``flex_attention`` on CUDA
            accepts such tensors. All other code of torch (``str``, ``to_dense``, slices of a mask,
            the compiler for CPUs) needs a column for every tile of a row.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``heads`` or ``tile`` is below 1, or the graph does not have this number of
            heads.

    Example:
        >>> from graphattn.patterns import SlidingWindow
        >>> SlidingWindow(64).build(1024).to_block_mask().shape
        (1, 1, 1024, 1024)
    """
    check_sides(heads=heads, tile=tile)
    check_bool(is_compact=is_compact)
    if self.num_queries % heads or self.num_keys % heads:
        raise ValueError(f"'heads' must divide the numbers of queries and keys of the graph (got "
                         f"heads={heads} and {self})")
    from torch.nn.attention.flex_attention import BlockMask

    of_head = self.num_queries // heads, self.num_keys // heads
    num_tiles = [-(-size // tile) for size in of_head]
    head, query, key = _in_heads(self, of_head)
    numbers, tile_of_edge, num_pairs = torch.unique(
        (head * num_tiles[0] + query // tile) * num_tiles[1] + key // tile,
        return_inverse=True, return_counts=True)
    is_partial = num_pairs < tile**2
    lists = {}
    for name, chosen in (('', is_partial), ('full_', num_pairs == tile**2)):
        row, column = numbers[chosen] // num_tiles[1], numbers[chosen] % num_tiles[1]
        own_head, row = row // num_tiles[0], row % num_tiles[0]
        for side, (at, other), (size, width) in (('kv', (row, column), num_tiles),
                                                 ('q', (column, row), num_tiles[::-1])):
            counts, indices = _lists(own_head * size + at, other, heads * size,
                                     1 if is_compact else width)
            lists[f'{name}{side}_num_blocks'] = counts.view(1, heads, size)
            lists[f'{name}{side}_indices'] = indices.view(1, heads, size, indices.size(1))
    pair = query % tile * tile + key % tile
    place, bits = _bits(is_partial, tile_of_edge, pair, tile**2)
    place_of_tile = numbers.new_zeros(heads * num_tiles[0] * num_tiles[1], dtype=torch.int32)
    place_of_tile[numbers] = place.int()
    return BlockMask(seq_lengths=of_head, BLOCK_SIZE=(tile, tile), **lists,
                     mask_mod=_look_up(place_of_tile.view(heads, *num_tiles), bits, tile))


def _in_heads(graph: BipartiteGraph, of_head: tuple[int, int]) -> tuple[Tensor, ...]:
    # of_head: numbers of queries and of keys of one head
    query, key = graph.query, graph.key
    head, key_head = query // max(of_head[0], 1), key // max(of_head[1], 1)
    if not torch.equal(head, key_head):
        raise ValueError(f"'heads' must be the number of heads whose graphs this graph joins, "
                         f"without edges between heads (got {int((head != key_head).sum())} edges "
                         f"between different heads)")
    # Queries and keys are counted from the first one of their head.
    return head, query - head * of_head[0], key - head * of_head[1]


def _lists(row: Tensor, column: Tensor, num_rows: int,
           at_least: int) -> tuple[Tensor, Tensor]:  # of width
    """Return a sparse matrix as the number of entries of each row, and their ascending columns."""
    order = (row * (int(column.max()) + 1 if column.numel() else 1) + column).argsort()
    row, column = row[order], column[order]
    counts = row.bincount(minlength=num_rows)
    width = max(int(counts.max()) if num_rows else 0, at_least)
    # int32 [num_rows, width]: a row's columns ascend and are followed by 0
    indices = torch.zeros(num_rows, width, dtype=torch.int32, device=row.device)
    begin = counts.cumsum(0) - counts
    indices[row, torch.arange(row.numel(), device=row.device) - begin[row]] = column.int()
    return counts.int(), indices


def _bits(is_partial: Tensor, tile_of_edge: Tensor, pair: Tensor,
          num_pairs: int) -> tuple[Tensor, Tensor]:
    """Return the row of the table that each tile uses, and the table, a bit for each (query, key)
    pair."""
    # Row 0 has no bit set. Row 1 has all bits set, and all full tiles share it.
    place = torch.where(is_partial, 1 + is_partial.cumsum(0), 1)
    num_words = -(-num_pairs // WORD)
    bits = place.new_zeros(2 + int(is_partial.sum()), num_words, dtype=torch.int32)
    bits[1].fill_(-1)
    is_looked_up = is_partial[tile_of_edge]
    tile_of_edge, pair = tile_of_edge[is_looked_up], pair[is_looked_up]
    word = place[tile_of_edge] * num_words + pair // WORD
    bit = torch.ones_like(word, dtype=torch.int32) << (pair % WORD).int()
    bits.view(-1).index_add_(0, word, bit)  # addition sets bits, because edges are unique
    return place, bits


def _look_up(place_of_tile: Tensor, bits: Tensor, tile: int) -> Callable[..., Tensor]:
    # place_of_tile is int32 [heads or 1, query tiles, key tiles]; bits are as of _bits.
    is_shared = place_of_tile.size(0) == 1

    def attends(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own_head = torch.zeros_like(head) if is_shared else head
        place = place_of_tile[own_head, query // tile, key // tile]
        pair = query % tile * tile + key % tile
        return bits[place, pair // WORD] >> pair % WORD & 1 == 1

    return attends
