"""The exact sampler: every pair of a segment is an edge with its own probability."""

from __future__ import annotations

from typing import Literal

import torch

from graphattn._tensors import outside_transforms, without_autocast
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.factor_model import FactorModel
from graphattn.ops.sample.methods import check_sampling, takes_compiled
from graphattn.ops.sample.trials import sample_with_torch

_METHODS = ('auto', 'compare', 'thin', 'torch')


@torch.compiler.disable(reason='a graph is drawn, and its number of edges is unknown before')
def sample_bernoulli(
    model: FactorModel,
    *,
    generator: torch.Generator | None = None,
    method: Literal['auto', 'compare', 'thin', 'torch'] = 'auto',
) -> BipartiteGraph:
    r"""Draw a graph whose edges are independent and have exactly the probabilities of the model,

    .. math::
        P(\text{edge}) = \min(1, p_{ij} + \delta).

    Here :math:`p_{ij}` is the probability of the model that query i attends to key j, and
    :math:`\delta` is the probability ``exploration`` that each (query, key) pair gets in addition.
    For n tokens, k clusters and E drawn edges: if E is large, the probabilities of all pairs inside
    the sequences of the batch are computed in chunks of bounded size, in O(n^2 k) time. If E is
    small, on a CPU with numba or on an NVIDIA GPU with Triton, edges are drawn as in
    :func:`sample_fastrg` at higher rates and then thinned to the same distribution, in
    O(Ek + nk^2) time. Memory is O(E + nk) in both cases.

    Args:
        model (FactorModel): The probabilities.
        generator (torch.Generator, optional): Random generator on the device of the model; torch's
            default generator if omitted. The same state returns the same graph on the same type of
            device, and a graph of the same distribution on other devices.
        method (str): ``'compare'``: a Bernoulli trial for each pair. ``'thin'``: draw edges at
            higher rates and drop some of them; the probabilities of each query need an upper bound
            below 1. Numba on a CPU and Triton on NVIDIA's GPUs compile ``'compare'`` and
            ``'thin'``; a GPU synchronises once for ``'compare'`` and twice for ``'thin'``.
            ``'torch'``: a trial for each pair on any device, without compiled code. ``'auto'``: the
            fastest of these methods.

    Returns:
        BipartiteGraph with the segments of ``model``, without ``edge_prob``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The generator is on another device, a :math:`p_{ij}` exceeds 1 by more than
            rounding, or the requested method does not support this model.
        ImportError: The requested method is compiled, and numba or Triton cannot be imported.

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
    check_sampling(model, generator, method, _METHODS)
    return draw_bernoulli(model, generator, method)


@torch.no_grad()
def draw_bernoulli(model: FactorModel, generator: torch.Generator | None,
                   method: str = 'auto') -> BipartiteGraph:
    """Draw as :func:`sample_bernoulli` does, without checking arguments."""
    if torch._C._are_functorch_transforms_active():
        with outside_transforms():
            return draw_bernoulli(model.numbers(), generator, method)
    device = model.device
    with without_autocast(device):
        if not takes_compiled(model, method):
            return sample_with_torch(model, generator)
        if device.type == 'cpu':
            return _sample_on_cpu(model, generator, method)
        return _sample_on_gpu(model, generator, method)


def _sample_on_cpu(model: FactorModel, generator: torch.Generator | None,
                   method: str) -> BipartiteGraph:
    from graphattn.ops.sample.cpu.comparing import compare
    from graphattn.ops.sample.cpu.drawing import draw_seed
    from graphattn.ops.sample.cpu.thinning import Thinning, faster_thinning
    if method == 'compare':
        return compare(model, draw_seed(generator))
    thinning = Thinning(model) if method == 'thin' else faster_thinning(model)
    return compare(model, draw_seed(generator)) if thinning is None else thinning.sample(generator)


def _sample_on_gpu(model: FactorModel, generator: torch.Generator | None,
                   method: str) -> BipartiteGraph:
    from graphattn.ops.sample.triton import compare, thin
    graph = None if method == 'compare' else thin(model, generator, by_name=method == 'thin')
    return compare(model, generator) if graph is None else graph
