"""Random graphs by a Bernoulli trial for each pair, in tiles of pairs, in Triton for NVIDIA's GPUs.

Trials are computed twice, first to count the edges. The same succeed both times, because sums have
a fixed order and random bits depend only on the seed and the pair.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn._tensors import index_dtype
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.factor_model import FactorModel
from graphattn.ops.triton.launch import TYPES, fp64, launch

_ROWS, _KEYS, _CLUSTERS = 64, 32, 32  # of a tile, and clusters that are multiplied at a time
_WARPS = {torch.float32: 4, torch.float64: 8}
_PROGRAMS = 2**10  # that keep a GPU busy; if there are fewer, the keys of rows are cut into pieces


def compare(model: FactorModel, generator: torch.Generator | None) -> BipartiteGraph:
    segment = _segments_of_tiles(model)
    pieces = max(1, min(_PROGRAMS // max(segment.numel(), 1), model.num_keys // _KEYS))
    query, key_factor = model.mixed_query().detach(), model.key_factor.detach().to(model.dtype)
    seed = segment.new_empty(()).random_(-2**63, None, generator=generator)
    shared = (query.contiguous(), key_factor.contiguous(), *model.segments.ptrs, segment, seed,
              model.exploration, triton.cdiv(model.num_keys, 4))
    size = segment.new_zeros(model.num_queries, pieces)
    largest = query.new_zeros(max(segment.numel(), 1), pieces)
    _launch(shared, pieces, size, largest, None, None)
    end = torch.cat([size.new_zeros(1), size.flatten().cumsum(0)])
    highest, num_edges = torch.stack([largest.amax().double(), end[-1].double()]).tolist()
    model.check_probability(highest)
    key = torch.zeros(int(num_edges), dtype=index_dtype(model.num_keys), device=model.device)
    _launch(shared, pieces, None, None, end, key)
    return BipartiteGraph.from_csr(end[::pieces].contiguous(), key, model.num_keys,
                                   query_ptr=model.query_ptr, key_ptr=model.key_ptr,
                                   validate=False)


def _segments_of_tiles(model: FactorModel) -> Tensor:
    # Queries are cut at multiples of 64, and where segments begin. Only the GPU knows where, so the
    # host uses an upper bound of the number of tiles; programs of tiles without queries return at
    # once.
    first_tile = model.query_ptr // _ROWS + torch.arange(model.num_segments + 1,
                                                         device=model.device)
    num_tiles = model.num_queries // _ROWS + model.num_segments
    tiles = torch.arange(num_tiles, device=model.device)
    return torch.searchsorted(first_tile, tiles, right=True) - 1


def _launch(shared: tuple, pieces: int, size: Tensor | None, largest: Tensor | None,
            end: Tensor | None, edge_key: Tensor | None) -> None:
    query, segment = shared[0], shared[4]
    launch(try_tiles, (segment.numel(), pieces), *shared, size, largest, end, edge_key,
           CLUSTERS=query.size(1), DTYPE=TYPES[query.dtype], ROWS=_ROWS, KEYS=_KEYS,
           DEPTH=_CLUSTERS, num_warps=_WARPS[query.dtype])


# Kernels #############################################################################


@triton.jit(do_not_specialize=['num_quads'])
def try_tiles(
        query, key_factor, query_ptr, key_ptr, segment_of_tile, seed, exploration: fp64, num_quads,
        size, largest, end, edge_key, CLUSTERS: tl.constexpr, DTYPE: tl.constexpr,
        ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr):
    """Kernel: compute the random trials of some queries with a piece of the keys of their
    segment."""
    # Without edge_key, writes the successes of each query to ``size`` [num_queries, pieces], and
    # the largest probability, inf for NaN, to ``largest`` [num_tiles, pieces]; else keys. end:
    # where these begin. num_quads: groups of four keys for each query, which number the random bits
    tile, piece, pieces = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    segment = tl.load(segment_of_tile + tile)
    first_row = (tile - segment) * ROWS
    first_of_segment = tl.load(query_ptr + segment)
    end_of_segment = tl.load(query_ptr + segment + 1)
    row = first_row + tl.arange(0, ROWS)
    is_row = (row >= first_of_segment) & (row < end_of_segment)
    first_key, end_key = tl.load(key_ptr + segment), tl.load(key_ptr + segment + 1)
    width = tl.cdiv(tl.cdiv(end_key - first_key, KEYS), pieces) * KEYS
    begin = first_key + piece * width
    stop = tl.where(first_row < end_of_segment, tl.minimum(begin + width, end_key), begin)
    written = tl.zeros([ROWS], tl.int64)
    most = written
    if edge_key is not None:  # never beyond the counts, in case a GPU sums in another order
        written = tl.load(end + row * pieces + piece, mask=is_row, other=0)
        most = tl.load(end + row * pieces + piece + 1, mask=is_row, other=0)
    highest = tl.zeros([ROWS], DTYPE)
    for first in range(begin, stop, KEYS):
        key = first + tl.arange(0, KEYS)
        is_key = key < stop
        prob = _products(query, key_factor, row, key, is_row, is_key, CLUSTERS, DTYPE, ROWS, KEYS,
                         DEPTH)
        quad = (row * num_quads + (first - first_key) // 4)[:, None] + tl.arange(0, KEYS // 4)
        succeeds = _succeed(prob + tl.full((), exploration, DTYPE), seed, quad, ROWS, KEYS)
        succeeds = (succeeds & is_row[:, None] & is_key[None, :]).to(tl.int32)
        if edge_key is None:
            # NaN counts as more than 1. Pairs outside the segment have the product 0.
            highest = tl.maximum(highest, tl.max(tl.where(prob == prob, prob, float('inf')), 1))
        else:
            place = written[:, None] + tl.cumsum(succeeds, axis=1) - 1
            number = (key[None, :] + tl.zeros_like(place)).to(edge_key.dtype.element_ty)
            tl.store(edge_key + place, number, mask=(succeeds == 1) & (place < most[:, None]))
        written += tl.sum(succeeds, axis=1)
    if edge_key is None:
        tl.store(size + row * pieces + piece, written, mask=is_row)
        tl.store(largest + tile * pieces + piece, tl.max(highest, axis=0))


@triton.jit
def _products(query, key_factor, row, key, is_row, is_key, CLUSTERS: tl.constexpr,
              DTYPE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr):
    # three products in TF32 are together as exact as float32
    PRECISION: tl.constexpr = 'tf32x3' if DTYPE == tl.float32 else 'ieee'
    product = tl.zeros([ROWS, KEYS], DTYPE)
    for first in range(0, CLUSTERS, DEPTH):
        cluster = first + tl.arange(0, DEPTH)
        is_cluster = cluster < CLUSTERS
        query_i = tl.load(query + row[:, None] * CLUSTERS + cluster[None, :],
                          mask=is_row[:, None] & is_cluster[None, :], other=0)
        key_j = tl.load(key_factor + key[None, :] * CLUSTERS + cluster[:, None],
                        mask=is_cluster[:, None] & is_key[None, :], other=0)
        product = tl.dot(query_i, key_j, product, input_precision=PRECISION, out_dtype=DTYPE)
    return product


@triton.jit
def _succeed(prob, seed, quad, ROWS: tl.constexpr, KEYS: tl.constexpr):
    # The first 32 bits decide all but one in 2**32 trials. Without the others, probabilities would
    # be rounded to multiples of 2**-32.
    scaled = tl.where(prob < 1, tl.maximum(prob, 0), 0) * 4294967296.
    whole = scaled.to(tl.uint32)
    rest = scaled - whole.to(prob.dtype)  # exact: the digits of a probability fit
    bits = _random_bits(seed, quad, 0, ROWS, KEYS)
    succeeds = (prob >= 1) | (bits < whole)
    is_open = (bits == whole) & (rest > 0)
    if tl.max(is_open.to(tl.int32)) > 0:
        more = _random_bits(seed, quad, 1, ROWS, KEYS)
        succeeds = succeeds | (is_open & (more < (rest * 4294967296.).to(tl.uint32)))
    return succeeds


@triton.jit
def _random_bits(seed, quad, STREAM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    # one call of Philox (Salmon et al., 2011) serves four keys
    low, high = quad.to(tl.uint32), (quad >> 32).to(tl.uint32)
    zero = low * 0
    a, b, c, d = tl.philox(tl.load(seed), low, high, zero + STREAM, zero)
    return tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), [ROWS, KEYS])
