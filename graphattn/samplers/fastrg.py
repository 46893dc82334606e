"""The fastRG sampler: a low-rank random graph in time linear in the edges."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from graphattn._tensors import outside_transforms, without_autocast
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pairs import number_pairs, sort_pairs
from graphattn.graphs.segments import sum_segments
from graphattn.ops.sample.factor_model import FactorModel
from graphattn.ops.sample.methods import MAX_DRAWS, check_rate, check_sampling, takes_compiled
from graphattn.ops.sample.trials import draw_cells, integer_cdf

_METHODS = ('auto', 'compiled', 'torch')


@torch.compiler.disable(reason='a graph is drawn, and its number of edges is unknown before')
def sample_fastrg(
    model: FactorModel,
    *,
    generator: torch.Generator | None = None,
    method: Literal['auto', 'compiled', 'torch'] = 'auto',
) -> BipartiteGraph:
    r"""Draw a graph by Algorithm 1 of SBM-Transformer: pairs are drawn Poisson times, and
    duplicates are merged.

    The pair of query i and key j is drawn :math:`\mathrm{Poisson}(p_{ij} + \delta)` times. Here
    :math:`p_{ij}` comes from the model, and :math:`\delta` is the ``exploration`` that every pair
    gets in addition. So edges are independent, with

    .. math::
        P(\text{edge}) = 1 - \exp(-(p_{ij} + \delta)).

    Without exploration :math:`\delta`, the probability of an edge is below :math:`p_{ij}`, and at
    most 63.2 % if :math:`p_{ij} \le 1`. So only :func:`sample_bernoulli` reaches full attention. In
    return, the cost depends on the number of edges, not on the number of pairs: E draws for n
    tokens and k clusters take O(E log k + nk^2) time and O(E + nk) memory. On GPUs, and without
    numba, the time is O(E log(nk) + nk^2).

    Counts are drawn row by row, which leads to the same distribution (Poisson splitting). With
    :math:`W_{iv} = (\hat Q \hat S)_{iv} \sum_j \hat K_{jv}`, query i draws :math:`N_i \sim
    \mathrm{Poisson}(\sum_v W_{iv})` times. Each draw selects a cluster v in proportion to
    :math:`W_i`, and then a key in proportion to column v of :math:`\hat K`, so that row and column
    clusters stay paired. The column sums are factors (:math:`D_Z = \mathrm{diag}(1Z)`), while
    Algorithm 1 as printed has the inverse of the column sums.

    Args:
        model (FactorModel): The rates, which may exceed 1.
        generator (torch.Generator, optional): Random generator on the device of the model; torch's
            default generator if omitted. The same state returns the same graph on the same type of
            device, and a graph of the same distribution on other devices.
        method (str): ``'compiled'``: draws row by row, with alias tables and numba on a CPU, and
            with inverse CDFs and Triton on NVIDIA's GPUs. ``'torch'``: draws all segments at once,
            with inverse CDFs, on any device. ``'auto'``: ``'compiled'`` if available, else
            ``'torch'``.

    Returns:
        BipartiteGraph with the segments of ``model`` and without ``edge_prob``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The generator is on another device, the expected draws do not fit in memory, or
            ``'compiled'`` does not support this model.
        ImportError: ``'compiled'`` is requested, and numba or Triton cannot be imported.

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
    check_sampling(model, generator, method, _METHODS)
    return draw_poisson(model, generator, method)


@torch.no_grad()
def draw_poisson(model: FactorModel, generator: torch.Generator | None,
                 method: str = 'auto') -> BipartiteGraph:
    """Draw as :func:`sample_fastrg` does, without checking arguments."""
    if torch._C._are_functorch_transforms_active():
        with outside_transforms():
            return draw_poisson(model.numbers(), generator, method)
    with without_autocast(model.device):
        if not takes_compiled(model, method):
            return _sample_with_torch(model, generator)
        if model.device.type == 'cpu':
            return _sample_on_cpu(model, generator)
        return _sample_on_gpu(model, generator, method)


def _sample_on_cpu(model: FactorModel, generator: torch.Generator | None) -> BipartiteGraph:
    from graphattn.ops.sample.cpu.drawing import draw_seed
    from graphattn.ops.sample.cpu.rates import Rates
    rates = Rates(model)
    query_rate = rates.of_queries()
    check_rate(query_rate.sum(), model)
    num_draws = torch.poisson(torch.from_numpy(query_rate), generator).long()
    return rates.draw(num_draws.numpy(), draw_seed(generator)).to_graph(model)


def _sample_on_gpu(model: FactorModel, generator: torch.Generator | None,
                   method: str) -> BipartiteGraph:
    from graphattn.ops.sample.triton import draw
    graph = draw(model, generator, by_name=method == 'compiled')
    return _sample_with_torch(model, generator) if graph is None else graph


def _sample_with_torch(model: FactorModel, generator: torch.Generator | None) -> BipartiteGraph:
    query_segment = model.segments.of_queries(model.num_queries)
    mixed_query, key_factor = (factor.double() for factor in model.rate_factors())
    key_mass = sum_segments(key_factor, model.key_ptr)
    cluster_rate = mixed_query * key_mass[query_segment]
    query_rate = cluster_rate.sum(1)
    drawable = query_rate.nan_to_num(0., 0., 0.).clamp(max=MAX_DRAWS)  # valid rates stay
    num_draws = torch.poisson(drawable, generator).long()
    # A GPU is synchronised here, and where duplicates are merged, to read two counts.
    expected_draws, all_draws = torch.stack([query_rate.sum(), num_draws.sum().double()]).tolist()
    check_rate(expected_draws, model)
    query = torch.repeat_interleave(num_draws, output_size=int(all_draws))

    num_clusters = cluster_rate.size(1)
    first = query * num_clusters
    cluster_cdf = integer_cdf(cluster_rate / _nonzero(query_rate)[:, None], model.num_queries)
    cluster = draw_cells(cluster_cdf, first, first + num_clusters, generator) - first

    key_share = key_factor / _nonzero(key_mass)[model.segments.of_keys(model.num_keys)]
    key_cdf = integer_cdf(key_share.t(), num_clusters * model.num_segments)
    column, segment = cluster * model.num_keys, query_segment[query]
    key = draw_cells(key_cdf, column + model.key_ptr[segment], column + model.key_ptr[segment + 1],
                     generator) - column

    pair = sort_pairs(number_pairs(key, query, model.num_keys))
    return BipartiteGraph.from_pairs(pair, model.num_queries, model.num_keys,
                                     query_ptr=model.query_ptr, key_ptr=model.key_ptr)


def _nonzero(mass: Tensor) -> Tensor:
    return mass.where(mass > 0, 1.)
