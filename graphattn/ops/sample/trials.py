"""Random graphs by a Bernoulli trial for each pair, in plain torch, on any device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pairs import number_pairs, sort_pairs
from graphattn.graphs.segments import Segments
from graphattn.ops.sample.factor_model import FactorModel

# Small enough that the products of a chunk fit in the caches of a CPU, and large enough for a GPU,
# because each chunk synchronises the GPU a few times.
PAIRS_PER_CHUNK = {'cpu': 2**20, 'cuda': 2**26}


def sample_with_torch(model: FactorModel, generator: torch.Generator | None, *,
                      pairs_per_chunk: int | None = None) -> BipartiteGraph:
    """Return a graph in which each pair is an edge with its probability under ``model``."""
    if pairs_per_chunk is None:
        pairs_per_chunk = PAIRS_PER_CHUNK.get(model.device.type, PAIRS_PER_CHUNK['cuda'])
    mixed_query, key_factor = model.mixed_query(), model.key_factor.to(model.dtype)
    chunks = chunks_of(model.segments, pairs_per_chunk)
    max_pairs = max((chunk.num_pairs for chunk in chunks), default=0)
    trials, workspace = _Trials(model.device), mixed_query.new_empty(max_pairs)
    pairs, largest = [model.query_ptr.new_empty(0)], []
    for chunk in chunks:
        prob = chunk.products(mixed_query, key_factor, workspace)
        largest.append(prob.amax())
        cell = trials.successes(prob.add_(model.exploration), generator)
        row = cell // chunk.num_keys
        first_cell = chunk.num_keys * torch.arange(prob.size(0), device=model.device)
        key = cell + (chunk.first_keys() - first_cell).take(row)
        pairs.append(number_pairs(key, chunk.queries().take(row), model.num_keys))
    if largest:
        model.check_probability(torch.stack(largest).amax().item())
    # Chunks of several shapes are not in the order of queries.
    return BipartiteGraph.from_pairs(sort_pairs(torch.cat(pairs)), model.num_queries,
                                     model.num_keys, query_ptr=model.query_ptr,
                                     key_ptr=model.key_ptr)


class _Trials:
    # All ranges share the large buffers: new ones would not fit between the stored edges of earlier
    # ranges, so memory would grow by the size of the buffers with each range.
    def __init__(self, device: torch.device):
        self._word = torch.empty(0, dtype=torch.long, device=device)
        self._noise = torch.empty(0, device=device)

    def successes(self, prob: Tensor, generator: torch.Generator | None) -> Tensor:
        # ``prob`` is overwritten. The first byte of a uniform value decides all but one in 256
        # trials, the others are drawn only for trials that have not failed by it. This is faster
        # than 24 random bits for every trial, and more precise, because values have 32 bits.
        prob = prob.flatten()
        if prob.numel() > self._noise.numel():
            self._noise = prob.new_empty(prob.numel())
            self._word = self._word.new_empty(-(-prob.numel() // 8))
        word = self._word[:-(-prob.numel() // 8)].random_(-2**63, None, generator=generator)
        byte = word.view(torch.uint8)[:prob.numel()]
        noise = self._noise[:prob.numel()].copy_(byte)
        excess = prob.sub_(noise, alpha=1 / 256)
        passed = _nonzero(torch.gt(excess, 0, out=byte.view(torch.bool)))
        rest = torch.rand(passed.shape, dtype=prob.dtype, device=prob.device, generator=generator)
        return passed.masked_select(rest < 256 * excess.take(passed))


def _nonzero(mask: Tensor) -> Tensor:
    if mask.device.type == 'cpu':
        # For a million entries with few true ones, numpy took 1 ms and torch.nonzero took 3 ms.
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().flatten()


def integer_cdf(share: Tensor, num_distributions: int) -> Tensor:
    """Return cumulative shares of the cells of several distributions, int64 ``[cells + 1]``."""
    # Integers are added without rounding, so a cell with a share of 0 has no width, and the
    # precision does not depend on the position. Cells of a distribution are adjacent, and sum to 1.
    width = (share * 2**share_bits(num_distributions)).round().long().flatten()
    return torch.cat([width.new_zeros(1), width.cumsum(0)])


def share_bits(num_distributions: int) -> int:
    """Return the bits to which shares are rounded, so few that the sum of all fits in int64."""
    return min(62 - num_distributions.bit_length(), 50)


def draw_cells(cdf: Tensor, first: Tensor, last: Tensor, generator: torch.Generator | None
               ) -> Tensor:
    """Return for each draw d a cell of ``first[d]:last[d]``, in proportion to its share."""
    low, high = cdf[first], cdf[last]
    uniform = torch.rand(low.shape, dtype=torch.float64, device=cdf.device, generator=generator)
    # A float64 below 1, times n, rounds to a value below n, so the target stays in first:last.
    target = low + (uniform * (high - low)).long()
    return torch.searchsorted(cdf[1:], target, right=True)


class Chunk(NamedTuple):
    """Consecutive queries of one segment, or all of several of one shape, and a piece of their
    keys."""

    first_query: Tensor  # of each segment, int64 [segments]
    num_queries: int  # of each segment
    first_key: Tensor  # of the piece of each segment, int64 [segments]
    num_keys: int  # of the piece of each segment
    piece: int  # number of earlier pieces of these rows
    offset: int  # number of keys in the earlier pieces

    @property
    def num_pairs(self) -> int:
        return self.first_query.numel() * self.num_queries * self.num_keys

    def queries(self) -> Tensor:
        return _nodes(self.first_query, self.num_queries)

    def first_keys(self) -> Tensor:
        # the first key that each query of the chunk is paired with
        return self.first_key.repeat_interleave(self.num_queries)

    def products(self, query_factor: Tensor, key_factor: Tensor, workspace: Tensor) -> Tensor:
        """Return the products of all pairs, ``[segments * num_queries, num_keys]``, in the
        workspace."""
        shape = (self.first_query.numel(), self.num_queries, self.num_keys)
        product = workspace[:self.num_pairs].view(shape)
        query = _rows(query_factor, self.first_query, self.num_queries)
        key = _rows(key_factor, self.first_key, self.num_keys)
        return torch.bmm(query, key.mT, out=product).flatten(0, 1)


def chunks_of(segments: Segments, pairs_per_chunk: int,
              keys_per_piece: int | None = None) -> list[Chunk]:
    """Return chunks that together contain all pairs inside the segments."""
    # of at most about pairs_per_chunk pairs, or the pairs of a single query
    segment_shape = torch.stack([segments.query_ptr.diff(), segments.key_ptr.diff()], dim=1)
    chunks = []
    for num_queries, num_keys in sorted({(n, m) for n, m in segment_shape.tolist() if n and m}):
        is_member = (segment_shape[:, 0] == num_queries) & (segment_shape[:, 1] == num_keys)
        members = is_member.nonzero().flatten()
        width = num_keys if keys_per_piece is None else min(keys_per_piece, num_keys)
        num_rows = min(max(pairs_per_chunk // width, 1), num_queries)
        for part in members.split(max(pairs_per_chunk // (num_rows * width), 1)):
            first_query, first_key = segments.query_ptr[part], segments.key_ptr[part]
            chunks += [Chunk(first_query + row, min(num_rows, num_queries - row),
                             first_key + key, min(width, num_keys - key), piece, key)
                       for row in range(0, num_queries, num_rows)
                       for piece, key in enumerate(range(0, num_keys, width))]
    return chunks


def _nodes(first: Tensor, size: int) -> Tensor:
    return (first[:, None] + torch.arange(size, device=first.device)).flatten()


def _rows(factor: Tensor, first: Tensor, size: int) -> Tensor:
    # a view for one segment, and on CPUs also for adjacent segments
    num_segments = first.numel()
    if num_segments == 1 or first.device.type == 'cpu' and _are_adjacent(first, size):
        factor = factor.narrow(0, int(first[0]), size * num_segments)
    else:
        factor = factor.index_select(0, _nodes(first, size))
    return factor.view(num_segments, size, -1)


def _are_adjacent(first: Tensor, size: int) -> bool:
    # the ranges ascend without overlap
    return int(first[-1] - first[0]) == size * (first.numel() - 1)
