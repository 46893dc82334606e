"""Attention along locally dense edges in Triton. Tensor cores multiply all pairs of a tile.

A tile has 64 rows and 32 columns. The kernels over rows gather the vectors of each edge. If 64 rows
have many edges in few tiles, as in windows and dense graphs, kernels over tiles are faster. Each
block of 64 rows is computed in one of the two ways. Tiles without edges are skipped, and no tensor
has the size of all pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton.launch import fp64, kernel, launch, u64, width_of
from graphattn.ops.triton.plans import Arriving, once_per_graph
from graphattn.ops.triton.rows import ROWS_OF_A_TILE, Rows, Tasks, gather, put, put_more
from graphattn.ops.triton.softmax import (
    Terms,
    before_softcap,
    gates,
    join,
    kept,
    logits,
    put_max_inv_sum,
    put_part,
)
from graphattn.ops.triton.tiles import MAX_COLUMNS, add_edge_by_edge, edges_of_rows, next_tile

_COLUMNS = 32
# By the number of channels: the number of edges that the kernels over rows compute in the time of
# one tile, forward and backward, measured on an H100. With more channels, a program would need more
# registers than a GPU has.
EDGES_OF_A_TILE = {16: 350, 32: 400, 64: 300, 128: 330}
# The fractions that a bias or gate, and dropout, add to this number.
_MORE_WITH_LOGITS, _MORE_WITH_DROPOUT = 0.25, 0.25
_FEW_CHANNELS = 64  # up to which the registers of four warps are enough for all sums
# A block is cut into parts if it has many tiles. Each part has at least this number of tiles, and
# at least the share 1 / _SHARE_OF_A_PART of all tiles, which is a fraction of the work of one of
# the few hundred programs that a GPU runs at once.
_TILES_OF_A_PART, _SHARE_OF_A_PART = 32, 1024
_BLOCKS = 256  # that a program of cut_blocks cuts


class Tiles(NamedTuple):
    """Choice of kernel for each block of 64 rows. A row has the edges of a query, or of a key in
    the backward pass. Some blocks are computed in tiles, which multiply 64 rows by 32 columns at
    once, edges or not. The other blocks are computed edge by edge."""

    num_tiles: Tensor  # upper bound for each block; 0 if kernels over rows compute the block
    tasks: Tasks  # whose places are blocks
    num_blocks: Arriving  # number of blocks that kernels over tiles compute

    @property
    def have_rows(self) -> bool:
        """Return whether any rows are computed in tiles. The result is True until the number of
        their blocks has arrived on the host."""
        known = self.num_blocks.now()
        return known is None or known > 0

    @property
    def leave_rows(self) -> bool:
        """Return whether any rows are computed edge by edge, and not in tiles. The result is True
        until the number of their blocks has arrived on the host."""
        known = self.num_blocks.now()
        return known is None or known < self.num_tiles.numel()

    def rest_of(self, rows: Rows) -> Rows:
        """Return a copy of ``rows`` that makes the kernels that compute edge by edge skip the rows
        that are computed in tiles."""
        return rows._replace(num_tiles=self.num_tiles)


def plan(indptr: Tensor, column: Tensor, num_columns: int, heads: int, channels: int,
         dtype: torch.dtype, terms: Terms) -> Tiles | None:
    """Choose the blocks of 64 rows that kernels over tiles compute, once for each graph.

    Args:
        indptr (Tensor): Where the edges of each row begin.
        column (Tensor): The key of each edge, or its query if rows are keys.
        num_columns (int): Number of keys, or of queries if rows are keys.
        heads (int): Number of heads of queries, or of keys if rows are keys.
        channels (int): Largest number of channels of a query, key or value.
        dtype (torch.dtype): Dtype of the queries.
        terms (Terms): The terms of the logits.

    Returns:
        Tiles, or None if the dtype or the sizes already show that no block is chosen.
    """
    edges, num_rows = _edges_of_a_tile(num_columns, channels, dtype, terms), indptr.numel() - 1
    # If 64 rows have fewer edges on average than one tile needs, the graph is not examined.
    if edges is None or column.numel() * ROWS_OF_A_TILE < edges * num_rows:
        return None

    def make() -> Tiles:
        num_tiles, totals = choose(indptr, column, num_columns, edges)
        return Tiles(num_tiles, _tasks(num_tiles, totals, column.numel(), heads),
                     Arriving(totals[1]))

    name = 'tiles', edges, heads, num_columns, _TILES_OF_A_PART, _SHARE_OF_A_PART
    return once_per_graph(name, indptr, column, make)


def _edges_of_a_tile(num_columns: int, channels: int, dtype: torch.dtype,
                     terms: Terms) -> int | None:
    """Return the mean number of edges in a tile (a block of queries by keys) from which on kernels
    that multiply whole tiles are faster than kernels that go along the edges of each query. Return
    None if the former do not support the arguments."""
    width = width_of(channels)
    if dtype.itemsize > 2 or width not in EDGES_OF_A_TILE or num_columns > MAX_COLUMNS:
        return None
    return int(EDGES_OF_A_TILE[width] * (1 + _MORE_WITH_LOGITS * _has_logits_of_edges(terms)
                                         + _MORE_WITH_DROPOUT * (terms.seed is not None)))


def choose(indptr: Tensor, column: Tensor, num_columns: int, edges: int) -> tuple[Tensor, Tensor]:
    """Choose the blocks of 64 rows that kernels over tiles compute: those whose tiles have at least
    ``edges`` edges on average. Edges are given by ``indptr`` and ``column``, as in :func:`plan`.

    Returns:
        A pair: an upper bound of the number of tiles with edges in each block, int32
        ``[num_blocks]``, which is 0 for blocks that are not chosen; and the sum of these bounds and
        the number of chosen blocks, int32 ``[2]``.
    """
    num_rows = indptr.numel() - 1
    num_programs = triton.cdiv(num_rows, ROWS_OF_A_TILE)
    num_tiles = torch.empty(num_programs, dtype=torch.int32, device=indptr.device)
    totals = torch.zeros(2, dtype=torch.int32, device=indptr.device)
    launch(choose_tiles, (num_programs,), indptr, column, num_tiles, totals, num_rows, num_columns,
           EDGES=edges, ROWS=ROWS_OF_A_TILE, COLUMNS=_COLUMNS, num_warps=4)
    return num_tiles, totals


def attend(tiles: Tiles, rows: Rows, nodes: list[Tensor], terms: Terms, out: Tensor,
           max_inv_sum: Tensor) -> None:
    """Write the outputs, the maximum logits and the inverse sums of exponentials of those queries
    that are computed in tiles, blocks of 64 queries by 32 keys.

    Args:
        tiles (Tiles): The chosen blocks of rows.
        rows (Rows): The edges grouped by query.
        nodes (list of Tensor): Query, key and value.
        terms (Terms): The terms of the logits.
        out (Tensor): ``[num_queries, heads, value_channels]``.
        max_inv_sum (Tensor): ``[num_queries, heads, 2]``.
    """
    (query, key, value), tasks = nodes, tiles.tasks
    parts = tasks.parts(query.size(1), value.size(2) + 2, out.dtype)
    launch(attend_tiles, (tasks.number, query.size(1)), *_pointers(tiles, rows), *nodes,
           *terms, out, max_inv_sum, parts, parts.size(1), len(key),
           **_constants(query, key, value), num_warps=_num_warps(terms, value))
    join(tasks, parts, out, max_inv_sum)


def grads_of_queries(tiles: Tiles, rows: Rows, nodes: list[Tensor], terms: Terms,
                     softmax: tuple[Tensor, ...], grads: tuple[Tensor | None, ...]) -> None:
    """Write the gradients of the queries that ``tiles`` has chosen, and of the bias and gate of
    their edges.

    Args:
        tiles (Tiles): The chosen blocks of rows.
        rows (Rows): The edges grouped by query.
        nodes (list of Tensor): Query, key, value, and the gradient of the output.
        terms (Terms): The terms of the logits.
        softmax (tuple of Tensor): The output; the maximum logits and inverse sums ``[num_queries,
            heads, 2]``; and a tensor ``[num_queries, heads, 4]`` that is filled for
            :func:`grads_of_keys`.
        grads (tuple of Tensor): Tensors for the gradients of query, bias and gate; None for
            gradients that are not needed.
    """
    (query, key, value, _), tasks = nodes, tiles.tasks
    parts = tasks.parts(query.size(1), query.size(2), softmax[-1].dtype)
    launch(grads_of_tiled_queries, (tasks.number, query.size(1)), *_pointers(tiles, rows), *nodes,
           *terms, *softmax, *grads, parts, parts.size(1), len(key), rows.num_edges,
           **_constants(query, key, value), num_warps=_num_warps(terms, key))
    tasks.add(parts, grads[0])


def grads_of_keys(tiles: Tiles, rows: Rows, perm: Tensor, nodes: list[Tensor], terms: Terms,
                  softmax: Tensor, grads: tuple[Tensor, Tensor]) -> None:
    """Write the gradients of the keys that ``tiles`` has chosen, and of their values.

    Args:
        tiles (Tiles): The chosen blocks of rows.
        rows (Rows): The edges grouped by key.
        perm (Tensor): The place of each of these edges in the order by query.
        nodes (list of Tensor): Query, key, value, and the gradient of the output.
        terms (Terms): The terms of the logits.
        softmax (Tensor): The last tensor of ``softmax`` of :func:`grads_of_queries`.
        grads (tuple of Tensor): Tensors for the gradients of keys and of values.
    """
    (query, key, value, _), tasks = nodes, tiles.tasks
    all_parts = [tasks.parts(key.size(1), grad.size(2), softmax.dtype) for grad in grads]
    launch(grads_of_tiled_keys, (tasks.number, key.size(1)), *_pointers(tiles, rows), perm,
           *nodes, *terms, softmax, *grads, *all_parts, all_parts[0].size(1), len(query),
           **_constants(query, key, value), num_warps=_num_warps(terms, key, value))
    for parts, grad in zip(all_parts, grads):
        tasks.add(parts, grad)


def _tasks(num_tiles: Tensor, totals: Tensor, num_edges: int, heads: int) -> Tasks:
    """Return the tasks of kernels that each compute a block of 64 queries or keys, tile by tile. A
    block with a large share of all tiles is cut into several tasks. ``num_tiles`` and ``totals``
    are the results of :func:`choose`."""
    max_tiles = num_edges // min(EDGES_OF_A_TILE.values())
    max_more = min(_SHARE_OF_A_PART // heads, max_tiles // _TILES_OF_A_PART)
    num_blocks = num_tiles.numel()

    def cut(more: Tensor, place_of_more: Tensor) -> None:
        launch(cut_blocks, (triton.cdiv(num_blocks, _BLOCKS),), num_tiles, totals, more,
               place_of_more, num_blocks, max_more, HEADS=heads, TILES=_TILES_OF_A_PART,
               SHARE=_SHARE_OF_A_PART, BLOCKS=_BLOCKS, num_warps=4)

    return Tasks.of(num_blocks, max_more, num_tiles, cut, ROWS_OF_A_TILE)


def _pointers(tiles: Tiles, rows: Rows) -> tuple[Tensor | int, ...]:
    tasks = tiles.tasks
    return (rows.indptr, rows.column, tiles.num_tiles, tasks.more, tasks.place_of_more,
            rows.num_rows, tasks.num_places, tasks.max_more)


def _constants(query: Tensor, key: Tensor, value: Tensor) -> dict[str, int]:
    (_, heads, channels), value_channels = query.shape, value.size(2)
    return dict(HEADS=heads, SHARING=heads // key.size(1), CHANNELS=channels,
                VALUE_CHANNELS=value_channels, ROWS=ROWS_OF_A_TILE, COLUMNS=_COLUMNS,
                WIDTH=width_of(channels), VALUE_WIDTH=width_of(value_channels))


def _num_warps(terms: Terms, *summed: Tensor) -> int:
    """Return the number of warps of a program that computes weighted sums of the tensors
    ``summed``: four or eight. Eight warps have twice as many registers for these sums and for
    values of edges, but multiply some pairs twice."""
    widths = [width_of(x.size(2)) for x in summed]
    is_alone = len(widths) == 1 and not _has_logits_of_edges(terms)
    return 4 if is_alone or max(widths) <= _FEW_CHANNELS else 8


def _has_logits_of_edges(terms: Terms) -> bool:
    return terms.bias is not None or terms.gate is not None


# Kernels #############################################################################


@kernel
def choose_tiles(indptr, column, num_tiles, totals, num_rows, num_columns, EDGES: tl.constexpr,
                 ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Kernel: write an upper bound of the number of tiles (``ROWS`` queries or keys by some
    columns) with edges in a block to ``num_tiles``, or 0 if these tiles have fewer than ``EDGES``
    edges on average. Add the bound, and 1 for the block, to ``totals``.

    The range of columns gives an upper bound, and the longest row gives a lower bound. If these
    bounds do not decide, tiles are counted one by one.
    """
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    row = first_row + tl.arange(0, ROWS)
    base, edge, end = edges_of_rows(indptr, first_row, row, row < num_rows)
    column += base
    most = tl.sum(end - edge, axis=0) // EDGES
    low, high = _columns_between(column, edge, end, num_columns)
    counted = tl.maximum(high // COLUMNS - low // COLUMNS + 1, 0)
    longest = tl.max(end - edge, axis=0)
    if (counted > most) & (longest <= most * COLUMNS):
        counted = most * 0
        while (tl.max(end - edge, axis=0) > 0) & (counted <= most):
            _, _, _, count = next_tile(column, edge, end, num_columns, COLUMNS)
            edge += count
            counted += 1
    if (counted > 0) & (counted <= most):
        tl.store(num_tiles + tl.program_id(0), counted)
        tl.atomic_add(totals, counted)
        tl.atomic_add(totals + 1, 1)
    else:
        tl.store(num_tiles + tl.program_id(0), 0)


@kernel
def cut_blocks(num_tiles, totals, more, place_of_more, num_places, max_more, HEADS: tl.constexpr,
               TILES: tl.constexpr, SHARE: tl.constexpr, BLOCKS: tl.constexpr):
    """Kernel: cut some blocks of rows into parts, and write where their parts are to ``more`` and
    ``place_of_more``, as :func:`put_more` does. A part has at least ``TILES`` tiles, and at least
    the share ``1 / SHARE`` of the tiles of all heads. ``num_tiles`` and ``totals`` are the results
    of :func:`choose`."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    tiles = tl.load(num_tiles + block, mask=block < num_places, other=0)
    of_a_part = tl.maximum(tl.cdiv(tl.load(totals).to(tl.int64) * HEADS, SHARE), TILES)
    count = tl.maximum(tl.cdiv(tiles, of_a_part) - 1, 0).to(tl.int32)
    put_more(count, block, more, place_of_more, num_places, max_more)


@triton.jit
def _columns_between(column, begin, end, num_columns):
    """Return the first and the last column in which any of some rows has an edge. If there are no
    edges, the first is larger than the last. The edges of each row are ``begin:end``."""
    has_edges = begin < end
    low = tl.load(column + begin, mask=has_edges, other=0).to(tl.int32)
    high = tl.load(column + end - 1, mask=has_edges, other=0).to(tl.int32)
    return (tl.min(tl.where(has_edges, low, num_columns), axis=0),
            tl.max(tl.where(has_edges, high, -1), axis=0))


@triton.jit
def _rows_of_task(indptr, column, num_tiles, more, place_of_more, num_rows, num_places, max_more,
                  num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return which rows and edges this program computes: a block of consecutive rows with all their
    edges, or with the edges in one range of columns. Blocks with many edges are cut into several
    such ranges, called parts.

    The seven results are: the rows; whether each row exists; the first edge of the block; where the
    edges of each row begin, and where they end, both counted from the first edge of the block; the
    index of each row in the workspace of sums over parts; and whether each row is in a block that
    was cut into parts. The arguments up to ``max_more`` are the result of :func:`_pointers`.
    """
    task = tl.program_id(0).to(tl.int64)
    part = task - num_places  # a further part, if not negative
    place = tl.load(place_of_more + part, mask=part >= 0, other=0).to(tl.int64)
    place = tl.where(part < 0, task, place)
    is_task = tl.load(num_tiles + place, mask=place < num_places, other=0) > 0
    is_cut = is_task & (max_more > 0)
    first = tl.load(more + place, mask=is_cut, other=0)
    num_parts = tl.load(more + num_places + place, mask=is_cut, other=0) + 1
    slot = tl.where(part < 0, max_more + first, part) * ROWS
    part = tl.where(part < 0, 0, part - first + 1)
    number, first_row = tl.arange(0, ROWS), tl.where(is_task, place, 0) * ROWS
    row = first_row + number
    is_row = (row < num_rows) & is_task
    base, begin, end = edges_of_rows(indptr, first_row, row, is_row)
    if num_parts > 1:
        column += base
        low, high = _columns_between(column, begin, end, num_columns)
        low = low // COLUMNS * COLUMNS
        step = tl.cdiv(tl.cdiv(high + 1 - low, num_parts), COLUMNS) * COLUMNS
        begin = _first_edge(column, begin, end, low + step * part)
        end = _first_edge(column, begin, end, low + step * (part + 1))
    is_part = is_row & (num_parts > 1)
    return row, is_row, base, begin, end, slot + number, is_part


@triton.jit
def _first_edge(column, begin, end, least):
    """Return for each row the first of its edges ``begin:end`` whose column is at least ``least``,
    or ``end`` if there is none. Columns ascend, so bisection finds it."""
    while tl.max(end - begin, axis=0) > 0:
        middle = begin + (end - begin) // 2
        found = tl.load(column + middle, mask=begin < end, other=0).to(tl.int32)
        is_before = (found < least) & (begin < end)
        begin, end = tl.where(is_before, middle + 1, begin), tl.where(is_before, end, middle)
    return begin


@kernel
def attend_tiles(
        indptr, edge_key, num_tiles, more, place_of_more, num_rows, num_places, max_more,
        query, key, value, bias, gate, seed, bias_edge_stride, bias_head_stride, gate_edge_stride,
        gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, out, max_inv_sum, parts, num_parts, num_columns,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Kernel: write the output, the maximum logit m, and 1 over the sum of ``exp(logit - m)`` of a
    block of queries in one head. A block with many edges is cut into parts, with the edges to
    a range of keys each. For such a part, write sums over its edges to ``parts`` instead.

    The arguments up to ``max_more`` are the result of :func:`_pointers`, those from ``bias`` to
    ``SOFTCAP`` are :class:`Terms`, and the constants are the result of :func:`_constants`.
    """
    row, is_row, base, first, end, slot, is_part = _rows_of_task(
        indptr, edge_key, num_tiles, more, place_of_more, num_rows, num_places, max_more,
        num_columns, ROWS, COLUMNS)
    head = tl.program_id(1)
    key_head = head // SHARING
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_row, query.dtype.element_ty)
    row_max = tl.full([ROWS], float('-inf'), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    while tl.max(end - first, axis=0) > 0:
        j, step, is_edge, count = next_tile(edge_key + base, first, end, num_columns, COLUMNS)
        edge = base + (first[:, None] + step)
        key_j = gather(key, j, key_head, HEADS // SHARING, CHANNELS, WIDTH, j < num_columns,
                       key.dtype.element_ty)
        dot = tl.dot(query_i, tl.trans(key_j))
        logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                       gate_head_stride, scale, edge, is_edge, head, SOFTCAP, tl.float32)
        new_max = tl.maximum(row_max, tl.max(logit, axis=1))
        shift = tl.where(new_max == float('-inf'), 0, new_max)  # avoids -inf - -inf
        rescale = tl.exp(row_max - shift)
        weight = tl.exp(logit - shift[:, None])
        row_sum = row_sum * rescale + tl.sum(weight, axis=1)
        if seed is not None:
            weight *= kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
        value_j = gather(value, j, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH,
                         j < num_columns, value.dtype.element_ty)
        sums = _add_product(sums * rescale[:, None], weight, is_edge, value_j, value, j,
                            num_columns, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH)
        row_max = new_max
        first += count
    inv_sum = tl.where(row_sum == 0, 0, 1 / row_sum)
    is_whole = is_row & (is_part == 0)
    put(out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_whole, sums * inv_sum[:, None])
    put_max_inv_sum(max_inv_sum, row * HEADS + head, is_whole, row_max, inv_sum)
    put_part(parts, head * num_parts + slot, is_part, sums, row_max, row_sum, VALUE_CHANNELS,
             VALUE_WIDTH)


@triton.jit
def _add_product(sums, weight, is_edge, x_j, x, j, num_columns, head, HEADS: tl.constexpr,
                 CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Return ``sums`` plus the matrix product of ``weight`` and ``x_j``. A non-finite value of
    ``x_j`` reaches only rows with an edge to its column.

    Tensor cores round weights, and rounded weights would not sum to the divisor of the softmax. So
    each weight is split into parts that tensor cores represent exactly. float16 is multiplied in
    TF32, because its range is too small for the parts.

    Args:
        sums: ``[rows, WIDTH]``.
        weight: ``[rows, columns]``, 0 if there is no edge.
        is_edge: Whether each pair is an edge, ``[rows, columns]``.
        x_j: The vectors of the columns, ``[columns, WIDTH]``.
        x: The tensor of these vectors, ``[num_columns, HEADS, CHANNELS]``.
        j: The columns.
    """
    IS_BF16: tl.constexpr = x_j.dtype == tl.bfloat16
    DTYPE: tl.constexpr = tl.bfloat16 if IS_BF16 else tl.float32
    DIGITS: tl.constexpr = 0xFFFF0000 if IS_BF16 else 0xFFFFE000
    EXPONENT: tl.constexpr = 0x7F80 if IS_BF16 else 0x7C00  # of non-finite values
    if tl.max(x_j.to(tl.int16, bitcast=True) & EXPONENT) < EXPONENT:
        of_x = x_j.to(DTYPE)
        part = _of_few_digits(weight, DIGITS)
        sums = tl.dot(part.to(DTYPE), of_x, sums, input_precision='tf32')
        rest = tl.where(tl.abs(weight) < float('inf'), weight - part, 0)  # avoids inf - inf
        part = _of_few_digits(rest, DIGITS)
        sums = tl.dot(part.to(DTYPE), of_x, sums, input_precision='tf32')
        if IS_BF16:
            part = _of_few_digits(rest - part, DIGITS)
            sums = tl.dot(part.to(DTYPE), of_x, sums)
    else:
        sums = add_edge_by_edge(sums, weight, is_edge, x, j, num_columns, head, HEADS, CHANNELS,
                                WIDTH, tl.float32)
    return sums


@triton.jit
def _of_few_digits(x, DIGITS: tl.constexpr):
    return (x.to(tl.uint32, bitcast=True) & DIGITS).to(tl.float32, bitcast=True)


@kernel
def grads_of_tiled_queries(
        indptr, edge_key, num_tiles, more, place_of_more, num_rows, num_places, max_more,
        query, key, value, grad_out, bias, gate, seed, bias_edge_stride, bias_head_stride,
        gate_edge_stride, gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, out, max_inv_sum, softmax, grad_query, grad_bias, grad_gate, parts,
        num_parts, num_columns, num_edges,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Kernel: compute the gradients of a block of queries in one head, and of the bias and gate of
    their edges. A block with many edges is cut into parts, with the edges to a range of keys each.
    For such a part, write sums over its edges to ``parts`` instead of the gradients of queries.

    Also write three numbers of each query to ``softmax``, which the kernel for the gradients of
    keys and values reads. With logits l and weights w, these are the maximum of l, 1 over the sum
    of exp(l - maximum), and the sum of w times the gradient of w.

    The arguments up to ``max_more`` are the result of :func:`_pointers`, those from ``bias`` to
    ``SOFTCAP`` are :class:`Terms`, and the constants are the result of :func:`_constants`.
    """
    row, is_row, base, first, end, slot, is_part = _rows_of_task(
        indptr, edge_key, num_tiles, more, place_of_more, num_rows, num_places, max_more,
        num_columns, ROWS, COLUMNS)
    head = tl.program_id(1)
    key_head = head // SHARING
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_row, query.dtype.element_ty)
    grad_i = gather(grad_out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_row,
                    value.dtype.element_ty)
    out_i = gather(out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_row, tl.float32)
    at = row * HEADS + head
    row_max = tl.load(max_inv_sum + 2 * at, mask=is_row, other=0)
    inv_sum = tl.load(max_inv_sum + 2 * at + 1, mask=is_row, other=0)
    delta = tl.sum(grad_i.to(tl.float32) * out_i, axis=1)
    tl.store(softmax + 4 * at, row_max, mask=is_row)
    tl.store(softmax + 4 * at + 1, inv_sum, mask=is_row)
    tl.store(softmax + 4 * at + 2, delta, mask=is_row)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    while tl.max(end - first, axis=0) > 0:
        j, step, is_edge, count = next_tile(edge_key + base, first, end, num_columns, COLUMNS)
        edge = base + (first[:, None] + step)
        key_j = gather(key, j, key_head, HEADS // SHARING, CHANNELS, WIDTH, j < num_columns,
                       key.dtype.element_ty)
        value_j = gather(value, j, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH,
                         j < num_columns, value.dtype.element_ty)
        dot = tl.dot(query_i, tl.trans(key_j))
        logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                       gate_head_stride, scale, edge, is_edge, head, SOFTCAP, tl.float32)
        weight = tl.exp(logit - row_max[:, None]) * inv_sum[:, None]
        grad_weight = tl.dot(grad_i, tl.trans(value_j))
        if seed is not None:
            grad_weight *= kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
        grad_logit = tl.where(is_edge, weight * (grad_weight - delta[:, None]), 0)
        if grad_bias is not None:
            tl.store(grad_bias + head.to(tl.int64) * num_edges + edge, grad_logit, mask=is_edge)
        grad_dot = before_softcap(grad_logit, dot, gate, gate_edge_stride, gate_head_stride, scale,
                                  edge, is_edge, head, SOFTCAP, tl.float32)
        grad_dot *= tl.full((), scale, tl.float32)
        if grad_gate is not None:
            tl.store(grad_gate + head.to(tl.int64) * num_edges + edge, grad_dot * dot,
                     mask=is_edge)
        if gate is not None:
            grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, is_edge, head,
                              tl.float32)
        sums = _add_product(sums, grad_dot, is_edge, key_j, key, j, num_columns, key_head,
                            HEADS // SHARING, CHANNELS, WIDTH)
        first += count
    put(grad_query, row, head, HEADS, CHANNELS, WIDTH, is_row & (is_part == 0), sums)
    put(parts, head * num_parts + slot, 0, 1, CHANNELS, WIDTH, is_part, sums)


@kernel
def grads_of_tiled_keys(
        indptr, edge_query, num_tiles, more, place_of_more, num_rows, num_places, max_more, perm,
        query, key, value, grad_out, bias, gate, seed, bias_edge_stride, bias_head_stride,
        gate_edge_stride, gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, softmax, grad_key, grad_value, parts, value_parts, num_parts,
        num_columns,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Kernel: compute the gradients of a block of keys and values in one head. For a part of a
    block, write sums over the part to ``parts`` and ``value_parts`` instead.

    The arguments up to ``max_more`` are the result of :func:`_pointers`, those from ``bias`` to
    ``SOFTCAP`` are :class:`Terms`, and the constants are the result of :func:`_constants`. ``perm``
    has the place of each edge in the order by query, and ``softmax`` is written by
    :func:`grads_of_tiled_queries`.
    """
    row, is_row, base, begin, end, slot, is_part = _rows_of_task(
        indptr, edge_query, num_tiles, more, place_of_more, num_rows, num_places, max_more,
        num_columns, ROWS, COLUMNS)
    key_head = tl.program_id(1)
    key_j = gather(key, row, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_row,
                   key.dtype.element_ty)
    value_j = gather(value, row, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_row,
                     value.dtype.element_ty)
    key_sums = tl.zeros([ROWS, WIDTH], tl.float32)
    value_sums = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    for head in range(key_head * SHARING, (key_head + 1) * SHARING):
        first = begin
        while tl.max(end - first, axis=0) > 0:
            i, step, is_edge, count = next_tile(edge_query + base, first, end, num_columns, COLUMNS)
            is_query = i < num_columns
            edge = tl.load(perm + base + (first[:, None] + step), mask=is_edge,
                           other=0).to(tl.int64)
            query_i = gather(query, i, head, HEADS, CHANNELS, WIDTH, is_query,
                             query.dtype.element_ty)
            grad_i = gather(grad_out, i, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_query,
                            value.dtype.element_ty)
            at = (i.to(tl.int64) * HEADS + head) * 4
            row_max = tl.load(softmax + at, mask=is_query, other=0)
            inv_sum = tl.load(softmax + at + 1, mask=is_query, other=0)
            delta = tl.load(softmax + at + 2, mask=is_query, other=0)
            dot = tl.dot(key_j, tl.trans(query_i))
            logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                           gate_head_stride, scale, edge, is_edge, head, SOFTCAP, tl.float32)
            weight = tl.where(is_edge, tl.exp(logit - row_max[None, :]) * inv_sum[None, :], 0)
            grad_weight = tl.dot(value_j, tl.trans(grad_i))
            used = weight
            if seed is not None:
                keep = kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
                grad_weight *= keep
                used = weight * keep
            grad_dot = tl.where(is_edge, weight * (grad_weight - delta[None, :]), 0)
            grad_dot = before_softcap(grad_dot, dot, gate, gate_edge_stride, gate_head_stride,
                                      scale, edge, is_edge, head, SOFTCAP, tl.float32)
            grad_dot *= tl.full((), scale, tl.float32)
            if gate is not None:
                grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, is_edge, head,
                                  tl.float32)
            key_sums = _add_product(key_sums, grad_dot, is_edge, query_i, query, i, num_columns,
                                    head, HEADS, CHANNELS, WIDTH)
            value_sums = _add_product(value_sums, used, is_edge, grad_i, grad_out, i, num_columns,
                                      head, HEADS, VALUE_CHANNELS, VALUE_WIDTH)
            first += count
    is_whole = is_row & (is_part == 0)
    put(grad_key, row, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_whole, key_sums)
    put(grad_value, row, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_whole,
        value_sums)
    slot = key_head * num_parts + slot
    put(parts, slot, 0, 1, CHANNELS, WIDTH, is_part, key_sums)
    put(value_parts, slot, 0, 1, VALUE_CHANNELS, VALUE_WIDTH, is_part, value_sums)
