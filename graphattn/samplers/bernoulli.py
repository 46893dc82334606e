"""The exact sampler: every pair of a block is an edge with its own probability."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph, _sort_pairs
from graphattn.samplers.factor_model import FactorModel, _check_sampling

_PAIRS_PER_CHUNK = 2**20


@torch.no_grad()
def sample_bernoulli(model: FactorModel, *, generator: torch.Generator | None = None
                     ) -> BipartiteGraph:
    r"""Draws a graph whose edges are independent with exactly the model's probabilities,

    .. math::
        P(\text{edge}) = \min(1, p_{ij} + \delta).

    It costs a matrix product over the pairs inside the blocks, a bounded number of them at a
    time, so O(n^2 k) time and O(E + nk) memory. Below a density of some 1.5 %, at k = 128,
    :func:`sample_fastrg` is faster, but it obeys another law.

    Args:
        model (FactorModel): The probabilities.
        generator (torch.Generator, optional): On the device of the model. The same state gives
            the same graph. torch's default generator if omitted.

    Returns:
        BipartiteGraph with the blocks of ``model`` and without ``edge_prob``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The generator is on another device, or some :math:`p_{ij}` exceeds 1 by more
            than rounding.

    Source: SBM-Transformer, Eq. 8 and Sec. 4.2.

    Example:
        >>> import torch
        >>> from graphattn.samplers import FactorModel, sample_bernoulli
        >>> member = torch.tensor([[1., 0.], [1., 0.], [0., 1.]])
        >>> model = FactorModel(member, torch.tensor([[0., 1.], [0., 0.]]), member)
        >>> sample_bernoulli(model).to_mask().int()
        tensor([[0, 0, 1],
                [0, 0, 1],
                [0, 0, 0]], dtype=torch.int32)
    """
    _check_sampling(model, generator)
    mixed_query = model.mixed_query()
    block_shape = torch.stack([model.query_ptr.diff(), model.key_ptr.diff()], dim=1)
    shapes = sorted({(n, m) for n, m in block_shape.tolist() if n and m})
    edges = [model.query_ptr.new_empty(2, 0)]
    with torch.autocast(model.device.type, enabled=False):
        for shape in shapes:
            blocks = (block_shape == block_shape.new_tensor(shape)).all(dim=1).nonzero().flatten()
            edges += _sample_blocks(model, mixed_query, blocks, *shape, generator)
    edge_index = torch.cat(edges, dim=1)
    if len(shapes) > 1:
        pair = _sort_pairs(edge_index[1] * model.num_keys + edge_index[0])[0]
        return BipartiteGraph._from_pairs(pair, model.num_queries, model.num_keys,
                                          model.query_ptr, model.key_ptr)
    return BipartiteGraph(edge_index, model.num_queries, model.num_keys, validate=False,
                          query_ptr=model.query_ptr, key_ptr=model.key_ptr)


def _sample_blocks(model: FactorModel, mixed_query: Tensor, blocks: Tensor, num_queries: int,
                   num_keys: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    """Edges ``[2, ...]`` of blocks of one shape, chunk by chunk, key over query, sorted."""
    rows_per_chunk = min(max(_PAIRS_PER_CHUNK // num_keys, 1), num_queries)
    blocks_per_chunk = max(_PAIRS_PER_CHUNK // (rows_per_chunk * num_keys), 1)
    rows = torch.arange(num_queries, device=model.device).split(rows_per_chunk)
    columns = torch.arange(num_keys, device=model.device)
    for block in blocks.split(blocks_per_chunk):
        first_query, first_key = model.query_ptr[block, None], model.key_ptr[block, None]
        key_factor = _rows(model.key_factor, first_key + columns).to(mixed_query.dtype)
        for row in rows:
            query = first_query + row
            prob = _rows(mixed_query, query) @ key_factor.mT
            _check_prob(prob, model)
            cell = _bernoulli(prob.add_(model.exploration), generator)
            chunk_row = cell // num_keys
            first_cell = num_keys * torch.arange(query.numel(), device=model.device)
            key_of_cell = first_key.expand_as(query).flatten() - first_cell
            yield torch.stack([cell + key_of_cell.take(chunk_row), query.take(chunk_row)])


def _rows(factor: Tensor, node: Tensor) -> Tensor:
    return factor.index_select(0, node.flatten()).view(*node.shape, -1)


def _bernoulli(prob: Tensor, generator: torch.Generator | None) -> Tensor:
    """Which of many independent trials succeed, as ascending positions; overwrites ``prob``.

    Trial by trial a uniform number is compared with ``prob``. Its first byte settles all but one
    in 256; the rest is drawn for those alone that it lets pass or leaves open. That is faster
    than 24 bits for each, and finer: 32 bits.
    """
    prob = prob.flatten()
    word = torch.empty(-(-prob.numel() // 8), dtype=torch.long, device=prob.device)
    byte = word.random_(-2**63, None, generator=generator).view(torch.uint8)[:prob.numel()]
    excess = prob.sub_(byte, alpha=1 / 256)
    passed = _positive(excess)
    rest = torch.rand(passed.shape, dtype=prob.dtype, device=prob.device, generator=generator)
    return passed.masked_select(rest < 256 * excess.take(passed))


def _positive(value: Tensor) -> Tensor:
    """The positions of positive entries."""
    if value.device.type == 'cpu':
        # On a million entries, few of them positive, numpy took 1 ms and torch.nonzero 3 ms.
        return torch.from_numpy(np.flatnonzero(value.numpy() > 0))
    return (value > 0).nonzero().flatten()


def _check_prob(prob: Tensor, model: FactorModel) -> None:
    rounding = max(1e-4, torch.finfo(model.query_factor.dtype).eps)
    largest = prob.amax().item()
    if not largest <= 1 + rounding:
        raise ValueError(f"'model' must hold probabilities, but its largest p_ij is "
                         f"{largest:.6g}; scale 'mixing' down, or take sample_fastrg, which reads "
                         f"them as rates")
