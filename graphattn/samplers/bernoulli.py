"""The exact sampler: every pair of a block is an edge with its own probability."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph
from graphattn.pairs import number_pairs, sort_pairs
from graphattn.samplers.factor_model import FactorModel, _check_sampling
from graphattn.samplers.fastrg import _compiled

_PAIRS_PER_CHUNK = 2**20
_PAIRS_IN_CACHE = 2**18  # 1 MB of float32, which a core's own cache holds until it is read

# Draws per pair above which the product over all pairs takes less time than thinning. On one
# core, with 16, 32 and 128 clusters, they took 33, 37 and 114 ms and 9, 9 and 23 ms at 1 % of
# 4,096 x 4,096 pairs, 56, 55 and 110 ms and 38, 42 and 117 ms at 10 %, 59, 70 and 182 ms and 130,
# 102 and 169 ms at 20 %.
_THINNING_BELOW = 0.1
_TABLE_ENTRY = 0.25  # draws; an entry took 7 ns, and a draw 20 to 50 ns
_HIGHEST_BOUND = 0.9  # which makes 2.6 draws of an edge; the bound 1 would make infinitely many


@torch.no_grad()
def sample_bernoulli(model: FactorModel, *, generator: torch.Generator | None = None
                     ) -> BipartiteGraph:
    r"""Draws a graph whose edges are independent with exactly the model's probabilities,

    .. math::
        P(\text{edge}) = \min(1, p_{ij} + \delta).

    Many edges cost a matrix product over the pairs inside the blocks, a bounded number of them at
    a time, so O(n^2 k) time; few edges, on a CPU with numba, are drawn by
    :func:`sample_fastrg` at higher rates and thinned to the same law, in O(Ek + nk^2) time. Memory
    is O(E + nk) either way.

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
    compiled = _compiled(model.device.type)
    with torch.autocast(model.device.type, enabled=False):
        if compiled is None:
            return _sample_on_any_device(model, generator)
        rates = compiled.Rates(model)
        query_rate, boost = rates.of_queries(), _boost(rates.bounds())
        if _is_sparse(model, query_rate, boost):
            num_draws = torch.poisson(torch.from_numpy(boost * query_rate), generator).long()
            rows = rates.draw(num_draws.numpy(), compiled.draw_seed(generator))
            rates.thin(rows, boost, compiled.draw_seed(generator))
        else:
            chunks = ((query.flatten(), prob.flatten(0, 1))
                      for query, _, prob in _products(model, _by_shape(model), _PAIRS_IN_CACHE))
            rows = compiled.compare(chunks, model, query_rate.sum(), compiled.draw_seed(generator))
    return rows.to_graph(model)


def _boost(bound: np.ndarray) -> np.ndarray:
    r"""How much more often than with its probability a pair is drawn that is to be thinned.

    A pair drawn at rate :math:`c_i p` is seen, once or more, with probability
    :math:`1 - e^{-c_i p}`, independently of the others. This is p at least where
    :math:`c_i \ge -\log(1 - p) / p`. As that grows with p, its value at a bound on the whole
    row's probabilities serves the whole row. A pair that was seen is then kept with probability
    :math:`p / (1 - e^{-c_i p}) \le 1`, by a coin of its own: as an edge it has probability p.
    """
    low = np.clip(bound, np.finfo(float).tiny, _HIGHEST_BOUND)
    return np.where(bound > _HIGHEST_BOUND, np.inf, -np.log1p(-low) / low)


def _is_sparse(model: FactorModel, query_rate: np.ndarray, boost: np.ndarray) -> bool:
    num_pairs = int((model.query_ptr.diff() * model.key_ptr.diff()).sum())
    table_entries = model.num_keys * model.num_clusters
    if np.isinf(boost).any():
        return False
    # Not numpy's product, whose threads would then spin beside torch's.
    num_draws = (boost * query_rate).sum()
    return num_draws + _TABLE_ENTRY * table_entries < _THINNING_BELOW * num_pairs


def _sample_on_any_device(model: FactorModel, generator: torch.Generator | None) -> BipartiteGraph:
    shapes, edges = _by_shape(model), [model.query_ptr.new_empty(2, 0)]
    trials = _Trials(model.device)
    for query, first_key, prob in _products(model, shapes, _PAIRS_PER_CHUNK):
        num_keys = prob.size(-1)
        cell = trials.successes(prob.add_(model.exploration), generator)
        row = cell // num_keys
        first_cell = num_keys * torch.arange(query.numel(), device=model.device)
        key_of_cell = first_key.expand_as(query).flatten() - first_cell
        edges.append(torch.stack([cell + key_of_cell.take(row), query.take(row)]))
    edge_index = torch.cat(edges, dim=1)
    if len(shapes) > 1:
        pair = sort_pairs(number_pairs(*edge_index, model.num_keys))
        return BipartiteGraph.from_pairs(pair, model.num_queries, model.num_keys,
                                         query_ptr=model.query_ptr, key_ptr=model.key_ptr)
    return BipartiteGraph(edge_index, model.num_queries, model.num_keys, validate=False,
                          query_ptr=model.query_ptr, key_ptr=model.key_ptr)


def _by_shape(model: FactorModel) -> dict[tuple[int, int], Tensor]:
    """The blocks that have pairs, by numbers of queries and keys."""
    block_shape = torch.stack([model.query_ptr.diff(), model.key_ptr.diff()], dim=1)
    shapes = sorted({(n, m) for n, m in block_shape.tolist() if n and m})
    return {shape: (block_shape == block_shape.new_tensor(shape)).all(dim=1).nonzero().flatten()
            for shape in shapes}


def _products(model: FactorModel, blocks_by_shape: dict[tuple[int, int], Tensor],
              pairs_per_chunk: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    r"""Queries ``[blocks, rows]``, first keys ``[blocks, 1]`` and :math:`p_{ij}` ``[blocks, rows,
    keys]`` of chunks of blocks of one shape. The next chunk overwrites :math:`p_{ij}`."""
    mixed_query = model.mixed_query()
    for (num_queries, num_keys), blocks in blocks_by_shape.items():
        rows_per_chunk = min(max(pairs_per_chunk // num_keys, 1), num_queries)
        blocks_per_chunk = max(pairs_per_chunk // (rows_per_chunk * num_keys), 1)
        rows = torch.arange(num_queries, device=model.device).split(rows_per_chunk)
        columns = torch.arange(num_keys, device=model.device)
        prob = mixed_query.new_empty(0)
        for block in blocks.split(blocks_per_chunk):
            first_query, first_key = model.query_ptr[block, None], model.key_ptr[block, None]
            key_factor = _rows(model.key_factor, first_key + columns).to(mixed_query.dtype)
            for row in rows:
                query = first_query + row
                prob.resize_(*query.shape, num_keys)
                torch.matmul(_rows(mixed_query, query), key_factor.mT, out=prob)
                _check_prob(prob, model)
                yield query, first_key, prob


def _rows(factor: Tensor, node: Tensor) -> Tensor:
    return factor.index_select(0, node.flatten()).view(*node.shape, -1)


class _Trials:
    """Independent trials, whose large buffers live as long as this.

    Fresh ones for each chunk would not fit between the edges that earlier chunks leave behind, and
    memory would grow by one buffer with each chunk.
    """

    def __init__(self, device: torch.device):
        self._word = torch.empty(0, dtype=torch.long, device=device)
        self._noise = torch.empty(0, device=device)

    def successes(self, prob: Tensor, generator: torch.Generator | None) -> Tensor:
        """Which trials succeed, as ascending positions; overwrites ``prob``.

        Trial by trial a uniform number is compared with ``prob``. Its first byte settles all but
        one in 256; the rest is drawn for those alone that it lets pass or leaves open. That is
        faster than 24 bits for each, and finer: 32 bits.
        """
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
        # On a million entries, few of them true, numpy took 1 ms and torch.nonzero 3 ms.
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().flatten()


def _check_prob(prob: Tensor, model: FactorModel) -> None:
    rounding = max(1e-4, torch.finfo(model.query_factor.dtype).eps)
    largest = prob.amax().item()
    if not largest <= 1 + rounding:
        raise ValueError(f"'model' must hold probabilities, but its largest p_ij is "
                         f"{largest:.6g}; scale 'mixing' down, or take sample_fastrg, which reads "
                         f"them as rates")
