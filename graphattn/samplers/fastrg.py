"""The fastRG sampler: edges of a low-rank random graph in time linear in the edges."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph
from graphattn.pairs import number_pairs, sort_pairs
from graphattn.samplers.factor_model import FactorModel, _block_of, _block_sum, _check_sampling

_MOST_DRAWS = 2**36


@torch.no_grad()
def sample_fastrg(model: FactorModel, *, generator: torch.Generator | None = None
                  ) -> BipartiteGraph:
    r"""Draws a graph by Algorithm 1: Poisson counts, of which repeated edges merge.

    A pair is drawn :math:`\mathrm{Poisson}(p_{ij} + \delta)` times, so that, independently,

    .. math::
        P(\text{edge}) = 1 - \exp(-(p_{ij} + \delta)).

    This is below :math:`p_{ij}` and, for probabilities, at most 63.2 %: only
    :func:`sample_bernoulli` reaches full attention. In return the cost follows the edges, not the
    pairs: O(E log k + nk^2) time and O(E + nk) memory for E draws. Where numba is missing and on
    other devices, it is O(E log(nk) + nk^2), over all blocks at once.

    The total is drawn row by row, which is the same law (Poisson splitting): query i draws
    :math:`N_i \sim \mathrm{Poisson}(\sum_v W_{iv})` times with
    :math:`W_{iv} = (\hat Q \hat S)_{iv} \sum_j \hat K_{jv}`, each time a cluster v by
    :math:`W_i` and then a key by column v of :math:`\hat K`, so that row and column clusters stay
    paired. The column sums multiply (:math:`D_Z = \mathrm{diag}(1Z)`); Algorithm 1 as printed
    has their inverse.

    Args:
        model (FactorModel): The rates; values above 1 are welcome.
        generator (torch.Generator, optional): On the device of the model. The same state gives
            the same graph. torch's default generator if omitted.

    Returns:
        BipartiteGraph with the blocks of ``model`` and without ``edge_prob``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The generator is on another device, or more draws are expected than any
            memory holds.

    Source: SBM-Transformer, Algorithm 1; Rohe et al., "A note on quickly sampling a sparse matrix
    with low rank expectation" (2018).

    Example:
        >>> import torch
        >>> from graphattn.samplers import FactorModel, sample_fastrg
        >>> member = torch.tensor([[1., 0.], [1., 0.], [0., 1.]])
        >>> model = FactorModel(member, torch.tensor([[0., 50.], [0., 0.]]), member)
        >>> sample_fastrg(model, generator=torch.Generator().manual_seed(0)).to_mask().int()
        tensor([[0, 0, 1],
                [0, 0, 1],
                [0, 0, 0]], dtype=torch.int32)
    """
    _check_sampling(model, generator)
    compiled = _compiled(model.device.type)
    if compiled is None:
        return _sample_on_any_device(model, generator)
    rates = compiled.Rates(model)
    query_rate = rates.of_queries()
    _check_rate(query_rate.sum())
    num_draws = torch.poisson(torch.from_numpy(query_rate), generator).long().numpy()
    return rates.draw(num_draws, compiled.draw_seed(generator)).to_graph(model)


def _sample_on_any_device(model: FactorModel, generator: torch.Generator | None) -> BipartiteGraph:
    query_block = _block_of(model.query_ptr)
    mixed_query, key_factor = (factor.double() for factor in _with_exploration(model))
    key_mass = _block_sum(key_factor, model.key_ptr)
    cluster_rate = mixed_query * key_mass[query_block]
    query_rate = cluster_rate.sum(1)
    _check_rate(query_rate.sum().item())
    query = torch.repeat_interleave(torch.poisson(query_rate, generator).long())

    num_clusters = cluster_rate.size(1)
    first = query * num_clusters
    cluster_cdf = _integer_cdf(cluster_rate / _nonzero(query_rate)[:, None], model.num_queries)
    cluster = _draw(cluster_cdf, first, first + num_clusters, generator) - first

    key_share = key_factor / _nonzero(key_mass)[_block_of(model.key_ptr)]
    key_cdf = _integer_cdf(key_share.t(), num_clusters * model.num_blocks)
    column, block = cluster * model.num_keys, query_block[query]
    key = _draw(key_cdf, column + model.key_ptr[block], column + model.key_ptr[block + 1],
                generator) - column

    pair = sort_pairs(number_pairs(key, query, model.num_keys))
    return BipartiteGraph.from_pairs(pair, model.num_queries, model.num_keys,
                                     query_ptr=model.query_ptr, key_ptr=model.key_ptr)


def _with_exploration(model: FactorModel) -> tuple[Tensor, Tensor]:
    """Q S and K, exploration being one more cluster that everything belongs to."""
    mixed_query = model.mixed_query()
    key_factor = model.key_factor.to(mixed_query.dtype)
    if model.exploration:
        explore = mixed_query.new_full((model.num_queries, 1), model.exploration)
        mixed_query = torch.cat([mixed_query, explore], dim=1)
        key_factor = torch.cat([key_factor, key_factor.new_ones(model.num_keys, 1)], dim=1)
    return mixed_query, key_factor


def _integer_cdf(share: Tensor, num_distributions: int) -> Tensor:
    """Where each cell of a row of distributions begins, int64 ``[share.numel() + 1]``.

    Integers add without rounding, so on every device a cell of share 0 has no width and no
    distribution, however far along the row, is blurred by those before it.
    """
    bits = min(62 - num_distributions.bit_length(), 50)
    width = (share * 2**bits).round().long().flatten()
    return torch.cat([width.new_zeros(1), width.cumsum(0)])


def _draw(cdf: Tensor, first: Tensor, last: Tensor, generator: torch.Generator | None) -> Tensor:
    """A cell of ``first:last`` for each draw, by inverse CDF."""
    low, high = cdf[first], cdf[last]
    uniform = torch.rand(low.shape, dtype=torch.float64, device=cdf.device, generator=generator)
    # A float64 below 1 times n rounds to below n, so the target stays inside first:last.
    target = low + (uniform * (high - low)).long()
    return torch.searchsorted(cdf[1:], target, right=True)


def _nonzero(mass: Tensor) -> Tensor:
    return mass.where(mass > 0, 1.)


def _check_rate(expected_draws: float) -> None:
    if not expected_draws < _MOST_DRAWS:
        raise ValueError(f"'model' expects {expected_draws:.3g} draws, more than memory holds; "
                         f"scale 'mixing' down")


@cache
def _compiled(device_type: str) -> ModuleType | None:
    """The module of compiled loops, where the device is a CPU and numba works."""
    if device_type != 'cpu':
        return None
    try:
        from graphattn.samplers import compiled
    except Exception as error:  # a broken numba raises what it likes
        warnings.warn(f"compiled samplers cannot be loaded ({error}); slower ones are taken",
                      stacklevel=3)
        return None
    return compiled
