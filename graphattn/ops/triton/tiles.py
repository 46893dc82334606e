"""The plan of tiles of a graph, made once for each order of its edges.

Kernels read the list of a block of rows before its tiles, so that no load waits for the edges. They
loop over tiles under a mask of bits, then over full ones without a mask. 0 times a non-finite value
is NaN, so if a sum is not finite, a third loop computes the block again, edge by edge.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton.launch import kernel, launch
from graphattn.ops.triton.plans import Arriving, once_per_graph, plans_of
from graphattn.ops.triton.rows import ROWS_OF_A_TILE, Rows, Tasks, gather, put_more

COLUMNS = 64  # of a tile; their bits are two words
LOOPS = tl.constexpr(3)  # over tiles under a mask, over full tiles, and edge by edge
FULL, EXACT = tl.constexpr(1), tl.constexpr(2)
MAX_COLUMNS = 2**31 // ROWS_OF_A_TILE - 1  # because edges of 64 rows are counted in 32 bits
# A block is cut into parts if it has many tiles. Each part has at least this number of tiles, and
# at least the share 1 / _SHARE_OF_A_PART of all tiles, which is a fraction of the work of one of
# the few hundred programs that a GPU runs at once.
_TILES_OF_A_PART, _SHARE_OF_A_PART = 16, 1024
_BLOCKS = 256  # that a program of cut_blocks cuts


class Tiles(NamedTuple):
    """The tiles of the blocks of 64 rows that kernels over tiles compute."""

    num_tiles: Tensor  # of each block; 0 if kernels over rows compute the block
    num_full: Tensor  # how many of them, the last ones, have no pair without an edge
    first: Tensor  # number of each block's first tile
    column: Tensor  # of each tile, which block of columns
    bits: Tensor  # int32 [tiles, 64, 2], a bit for each column, set where the pair is an edge
    edge: Tensor  # int32 [tiles, 64], first edge of each row in the tile, from the block's first on
    tasks: Tasks  # whose places are blocks
    num_blocks: Arriving  # number of blocks that kernels over tiles compute

    @property
    def have_rows(self) -> bool:
        known = self.num_blocks.now()
        # True until the host knows
        return known is None or known > 0

    @property
    def leave_rows(self) -> bool:
        known = self.num_blocks.now()
        # True until the host knows
        return known is None or known < self.num_tiles.numel()

    def rest_of(self, rows: Rows) -> Rows:
        return rows._replace(num_tiles=self.num_tiles)

    def pointers(self, rows: Rows) -> tuple[Tensor | int, ...]:
        tasks = self.tasks
        # what tiles_of_task reads, the first arguments of kernels over tiles
        return (rows.indptr, self.num_tiles, self.num_full, self.first, self.column, self.bits,
                self.edge, tasks.more, tasks.place_of_more, rows.num_rows, tasks.num_places,
                tasks.max_more)


def plan(indptr: Tensor, column: Tensor, num_columns: int, heads: int, edges: int) -> Tiles | None:
    """Return the tiles of blocks of at least ``edges`` edges per tile, None if sizes exclude
    them."""
    num_rows, num_edges = indptr.numel() - 1, column.numel()
    if num_columns > MAX_COLUMNS or num_edges * ROWS_OF_A_TILE < edges * num_rows:
        return None
    name = 'tiles', heads, num_columns, _TILES_OF_A_PART, _SHARE_OF_A_PART, edges
    return once_per_graph(name, indptr, column,
                          lambda: _make(indptr, column, num_columns, heads, edges))


def planned(indptr: Tensor, column: Tensor, num_columns: int, heads: int) -> Tiles | None:
    """Return tiles that have been planned for other kernels along this graph, None if none are."""
    wanted = 'tiles', heads, num_columns, _TILES_OF_A_PART, _SHARE_OF_A_PART  # of any edges
    return next((plan for name, plan in plans_of(indptr, column).items()
                 if name[:-1] == wanted), None)


def _make(indptr: Tensor, column: Tensor, num_columns: int, heads: int, edges: int) -> Tiles:
    num_tiles, num_full, totals = count(indptr, column, num_columns, edges)
    # Without waiting for the number.
    most = min(column.numel() // edges, num_tiles.numel() * triton.cdiv(num_columns, COLUMNS))
    first = num_tiles.cumsum(0, dtype=torch.int32) - num_tiles
    of_tiles = [num_tiles.new_empty(most, *shape) for shape in ((), (ROWS_OF_A_TILE, 2),
                                                                (ROWS_OF_A_TILE,))]
    launch(list_tiles, (num_tiles.numel(),), indptr, column, num_tiles, num_full, first, *of_tiles,
           indptr.numel() - 1, num_columns, ROWS=ROWS_OF_A_TILE, COLUMNS=COLUMNS, num_warps=8)
    return Tiles(num_tiles, num_full, first, *of_tiles, _tasks(num_tiles, totals, most, heads),
                 Arriving(totals[1]))


def count(indptr: Tensor, column: Tensor, num_columns: int,
          edges: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tiles and full tiles of each block, 0 if not chosen, and the totals, all int32."""
    num_rows = indptr.numel() - 1
    blocks = triton.cdiv(num_rows, ROWS_OF_A_TILE)
    num_tiles, num_full = torch.empty(2, blocks, dtype=torch.int32, device=indptr.device)
    totals = torch.zeros(2, dtype=torch.int32, device=indptr.device)
    launch(count_tiles, (blocks,), indptr, column, num_tiles, num_full, totals, num_rows,
           num_columns, EDGES=edges, ROWS=ROWS_OF_A_TILE, COLUMNS=COLUMNS, num_warps=8)
    return num_tiles, num_full, totals


def _tasks(num_tiles: Tensor, totals: Tensor, max_tiles: int, heads: int) -> Tasks:
    max_more = min(_SHARE_OF_A_PART // heads, max_tiles // _TILES_OF_A_PART)
    num_blocks = num_tiles.numel()

    def cut(more: Tensor, place_of_more: Tensor) -> None:
        launch(cut_blocks, (triton.cdiv(num_blocks, _BLOCKS),), num_tiles, totals, more,
               place_of_more, num_blocks, max_more, HEADS=heads, TILES=_TILES_OF_A_PART,
               SHARE=_SHARE_OF_A_PART, BLOCKS=_BLOCKS, num_warps=4)

    return Tasks.of(num_blocks, max_more, num_tiles, cut, ROWS_OF_A_TILE)


# Kernels #############################################################################


@kernel
def count_tiles(indptr, column, num_tiles, num_full, totals, num_rows, num_columns,
                EDGES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    base, edge, end = _edges_of_block(indptr, num_rows, ROWS)
    column += base
    most = tl.sum(end - edge, axis=0) // EDGES
    counted, full = most * 0, most * 0
    # The longest row has edges in so many tiles at least.
    is_possible = tl.max(end - edge, axis=0) <= most * COLUMNS
    while is_possible & (tl.max(end - edge, axis=0) > 0) & (counted <= most):
        _, _, _, found = _next_tile(column, edge, end, num_columns, COLUMNS)
        edge += found
        counted += 1
        full += (tl.min(found, axis=0) == COLUMNS).to(tl.int32)
    is_chosen = (counted > 0) & (counted <= most)
    tl.store(num_tiles + tl.program_id(0), tl.where(is_chosen, counted, 0))
    tl.store(num_full + tl.program_id(0), tl.where(is_chosen, full, 0))
    if is_chosen:
        tl.atomic_add(totals, counted)
        tl.atomic_add(totals + 1, 1)


@kernel
def list_tiles(indptr, column, num_tiles, num_full, first, column_of, bits, edge_of, num_rows,
               num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Kernel: write the tiles of a block, those that are full behind the others."""
    base, edge, end = _edges_of_block(indptr, num_rows, ROWS)
    block, row = tl.program_id(0), tl.arange(0, ROWS)
    column += base
    tiles = tl.load(num_tiles + block)
    partial = tl.load(first + block).to(tl.int64)
    full = partial + tiles - tl.load(num_full + block)
    while (tiles > 0) & (tl.max(end - edge, axis=0) > 0):
        number, low, high, found = _next_tile(column, edge, end, num_columns, COLUMNS)
        is_full = tl.min(found, axis=0) == COLUMNS
        tile = tl.where(is_full, full, partial)
        tl.store(column_of + tile, number)
        tl.store(edge_of + tile * ROWS + row, edge)
        tl.store(bits + (tile * ROWS + row) * 2, low)
        tl.store(bits + (tile * ROWS + row) * 2 + 1, high)
        full += is_full.to(tl.int64)
        partial += 1 - is_full.to(tl.int64)
        edge += found


@kernel
def cut_blocks(num_tiles, totals, more, place_of_more, num_places, max_more, HEADS: tl.constexpr,
               TILES: tl.constexpr, SHARE: tl.constexpr, BLOCKS: tl.constexpr):
    """Kernel: cut blocks into parts of at least ``TILES`` tiles."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    tiles = tl.load(num_tiles + block, mask=block < num_places, other=0)
    # and at least 1 / SHARE of the tiles of all heads
    of_a_part = tl.maximum(tl.cdiv(tl.load(totals).to(tl.int64) * HEADS, SHARE), TILES)
    count = tl.maximum(tl.cdiv(tiles, of_a_part) - 1, 0).to(tl.int32)
    put_more(count, block, more, place_of_more, num_places, max_more)


@triton.jit
def _edges_of_block(indptr, num_rows, ROWS: tl.constexpr):
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    row = first_row + tl.arange(0, ROWS)
    # edges are counted from the block's first, in 32 bits because registers are scarce
    base = tl.load(indptr + first_row)
    begin = tl.load(indptr + row, mask=row < num_rows, other=0) - base
    end = tl.load(indptr + row + 1, mask=row < num_rows, other=0) - base
    is_row = row < num_rows
    return base, tl.where(is_row, begin, 0).to(tl.int32), tl.where(is_row, end, 0).to(tl.int32)


@triton.jit
def _next_tile(column, edge, end, num_columns, COLUMNS: tl.constexpr):
    # the bits of each row's first and last 32 columns, and its number of edges
    number = tl.arange(0, COLUMNS)
    inside = number[None, :] < (end - edge)[:, None]
    found = tl.load(column + (edge[:, None] + number[None, :]), mask=inside, other=0).to(tl.int32)
    block = tl.min(tl.where(inside, found, num_columns)) // COLUMNS
    place = found - block * COLUMNS
    inside &= place < COLUMNS
    # Columns ascend, so the columns of a row are different bits, which add up to a word.
    bit = tl.full([1, 1], 1, tl.uint32) << (place & 31).to(tl.uint32)
    low = tl.sum(tl.where(inside & (place < 32), bit, 0), axis=1).to(tl.int32, bitcast=True)
    high = tl.sum(tl.where(inside & (place >= 32), bit, 0), axis=1).to(tl.int32, bitcast=True)
    return block, low, high, tl.sum(inside.to(tl.int32), axis=1)


@triton.jit
def tiles_of_task(indptr, num_tiles, num_full, first_tile, more, place_of_more, num_rows,
                  num_places, max_more, ROWS: tl.constexpr):
    """Return which tiles this program computes: those of a block, or of a part of it."""
    task = tl.program_id(0).to(tl.int64)
    part = task - num_places  # a further part, if not negative
    block = tl.load(place_of_more + part, mask=part >= 0, other=0).to(tl.int64)
    block = tl.where(part < 0, task, block)
    tiles = tl.load(num_tiles + block, mask=block < num_places, other=0)
    is_cut = (tiles > 0) & (max_more > 0)
    first = tl.load(more + block, mask=is_cut, other=0)
    num_parts = tl.load(more + num_places + block, mask=is_cut, other=0) + 1
    slot = tl.where(part < 0, max_more + first, part) * ROWS
    part = tl.where(part < 0, 0, part - first + 1).to(tl.int32)
    block = tl.where(tiles > 0, block, 0)
    first_row = block * ROWS
    row = first_row + tl.arange(0, ROWS)
    is_row = (row < num_rows) & (tiles > 0)
    base = tl.load(indptr + first_row)
    number = tl.load(first_tile + block)
    size = tl.cdiv(tiles, num_parts)
    begin = number + tl.minimum(size * part, tiles)
    end = number + tl.minimum(size * (part + 1), tiles)
    full = tl.minimum(tl.maximum(number + tiles - tl.load(num_full + block), begin), end)
    # first row; rows here; first edge; first tile, first full tile and end; slot of each row in the
    # workspace of Tasks.parts; whether the block was cut
    return first_row, is_row, base, begin, full, end, slot + tl.arange(0, ROWS), num_parts > 1


@triton.jit
def pairs_of_tile(bits, edge_of, tile, IS_FULL: tl.constexpr, ROWS: tl.constexpr,
                  COLUMNS: tl.constexpr, NEEDS_EDGES: tl.constexpr):
    """Return whether each pair is an edge, and its number if ``NEEDS_EDGES``, else 0."""
    column = tl.arange(0, COLUMNS)[None, :]
    at = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
    is_edge, number = column >= 0, tl.zeros([1, 1], tl.int32)
    before = column
    if not IS_FULL:
        low = tl.load(bits + 2 * at).to(tl.uint32, bitcast=True)[:, None]
        high = tl.load(bits + 2 * at + 1).to(tl.uint32, bitcast=True)[:, None]
        word = tl.where(column < 32, low, high)
        bit = tl.full([1, COLUMNS], 1, tl.uint32) << (column & 31).to(tl.uint32)
        is_edge = (word & bit) != 0
        if NEEDS_EDGES:
            before = _count_bits(word & (bit - 1)) + tl.where(column < 32, 0, _count_bits(low))
    if NEEDS_EDGES:
        number = before + tl.load(edge_of + at)[:, None]
    return is_edge, number


@triton.jit
def _count_bits(bits):
    bits -= (bits >> 1) & 0x55555555
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return ((bits * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def vectors_of_block(x, first, num_nodes, head, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
                     NODES: tl.constexpr, WIDTH: tl.constexpr, IS_WHOLE: tl.constexpr):
    """Return ``NODES`` consecutive vectors in one head, 0 for those that do not exist."""
    # all exist if IS_WHOLE
    node, channel = tl.arange(0, NODES), tl.arange(0, WIDTH)
    at = node[:, None] * (HEADS * CHANNELS) + channel[None, :]
    pointers = x + (first.to(tl.int64) * HEADS + head) * CHANNELS + at
    if not IS_WHOLE:
        inside = (node < num_nodes - first)[:, None] & (channel < CHANNELS)[None, :]
        vectors = tl.load(pointers, mask=inside, other=0)
    elif CHANNELS < WIDTH:
        vectors = tl.load(pointers, mask=(channel < CHANNELS)[None, :], other=0)
    else:
        vectors = tl.load(pointers)
    return vectors


@triton.jit
def not_finite(sums):
    """Return whether a sum is not finite."""
    return tl.max((tl.abs(sums) < float('inf')).to(tl.int32) ^ 1) == 1


@triton.jit
def add_edge_by_edge(sums, weight_j, is_added, x, first, num_columns, head, HEADS: tl.constexpr,
                     CHANNELS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return ``sums`` plus ``weight_j`` times the vectors of columns, where ``is_added``."""
    # A product of matrices would include all pairs, and 0 times a non-finite value is NaN.
    column = tl.arange(0, COLUMNS)
    for j in range(0, COLUMNS):
        node = first + j + tl.zeros([1], tl.int32)
        x_j = gather(x, node, head, HEADS, CHANNELS, WIDTH, node < num_columns, tl.float32)
        is_it = (column == j)[None, :]
        weight = tl.sum(tl.where(is_it, weight_j, 0), axis=1)[:, None]
        added = tl.max((is_it & is_added).to(tl.int32), axis=1)[:, None] == 1
        sums += tl.where(added, weight * x_j, 0)
    return sums
