"""A stochastic block model for every head, sampled for every sequence."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from graphattn._checks import check_choice, check_number, check_place, check_sides
from graphattn._tensors import accumulated
from graphattn.functional.drive import LOCAL, Placement
from graphattn.functional.shard import Shard, check_shard
from graphattn.graphs.from_pyg import Edges
from graphattn.graphs.graph import BipartiteGraph
from graphattn.patterns import Pattern
from graphattn.samplers import FactorModel
from graphattn.samplers.bernoulli import draw_bernoulli
from graphattn.samplers.fastrg import draw_poisson
from graphattn.samplers.straight_through import ESTIMATORS, pass_gradient
from graphattn.sources.base import GraphSource, fold_ptr
from graphattn.sources.pattern_source import PatternSource
from graphattn.sources.sampled_graph import SampledGraph
from graphattn.sources.some_rows import sample_rows
from graphattn.sources.structure_source import StructureSource

PRESETS = ('paper', 'repo')
DISTRIBUTIONS = {'bernoulli': draw_bernoulli, 'poisson': draw_poisson}


class BlockModelSource(GraphSource):
    r"""Graphs sampled from a mixed-membership stochastic block model (SBM-Transformer, Sec. 4.1).

    .. math::
        \hat{S} = \operatorname{softmax}(C C^\top), \quad
        \hat{Q} = \operatorname{sigmoid}(\mathrm{MLP}(Q) C^\top), \quad
        \hat{K} = \operatorname{sigmoid}(\mathrm{MLP}(K) C^\top), \quad
        M_{ij} \sim \hat{Q}_i \hat{S} \hat{K}_j^\top

    (Eq. 5 to 8), where the softmax runs over all :math:`k^2` entries. In training the graph also
    has the probabilities of its edges, and :meth:`logit_terms` passes the gradient of the
    probabilities straight through the sampling to clusters and MLP. After initialisation,
    :math:`\operatorname{sigmoid}(0)^2`, or a quarter, of the pairs are edges (App. C). Under
    ``torch.compile``, sampling is one graph break, because the edges depend on the values of the
    tokens.

    Args:
        heads (int): Number of heads; each has its own clusters and graphs.
        head_channels (int): Size of a head.
        clusters (int): Number of clusters :math:`k`.
        preset (str): ``'paper'``: each head has its own MLP and initialises its own clusters.
            ``'repo'``, as in the authors' code: all heads share one MLP, and clusters start with
            standard deviation :math:`\sqrt{2 / (k C)}`, so that all edges start with similar
            probabilities.
        distribution (str): ``'bernoulli'``: an edge has probability :math:`\min(1, p + \delta)`.
            ``'poisson'``: Algorithm 1, where an edge has probability :math:`1 - e^{-p - \delta}`,
            so the density never exceeds 63 %.
        exploration (float): :math:`\delta`, added to every probability in training (Sec. 4.2).
        estimator (str): Gradient of a loss in the probabilities of the edges. ``'one-sided'`` is an
            estimator of this library; it needs a penalty on density to keep attention sparse.
            ``'paper'`` is Eq. 9, and ``'repo'`` is the authors' code. See
            :func:`graphattn.samplers.straight_through`.
        fixed (Pattern or str, optional): Edges of probability 1, in addition to the sampled edges:
            ``SlidingWindow(0)`` adds self-loops (the paper's variant ``+I``), ``SlidingWindow(32)``
            the local window of 64 in the paper's GLUE models.

    Raises:
        ValueError: A size is not positive, ``exploration`` is not in [0, 1], or a name is unknown.

    Example:
        >>> import torch
        >>> from graphattn.sources import BlockModelSource
        >>> _ = torch.manual_seed(1)
        >>> source = BlockModelSource(heads=2, head_channels=8, clusters=16).eval()
        >>> query, key = torch.randn(2, 500, 2, 8)
        >>> graph = source(query, key, torch.tensor([0, 200, 500]))
        >>> graph.num_segments, 0.2 < graph.density() < 0.3  # two heads of two sequences
        (4, True)
    """

    per_head = True
    is_causal = False

    def __init__(
        self,
        heads: int,
        head_channels: int,
        clusters: int = 128,
        *,
        preset: Literal['paper', 'repo'] = 'paper',
        distribution: Literal['bernoulli', 'poisson'] = 'bernoulli',
        exploration: float = 0.01,
        estimator: Literal['one-sided', 'paper', 'repo'] = 'one-sided',
        fixed: Pattern | str | None = None,
    ):
        super().__init__()
        check_sides(heads=heads, head_channels=head_channels, clusters=clusters)
        check_number('exploration', exploration, 'in [0, 1]')
        check_choice('preset', preset, PRESETS)
        check_choice('distribution', distribution, DISTRIBUTIONS)
        check_choice('estimator', estimator, ESTIMATORS)
        if fixed is not None and not isinstance(fixed, Pattern | str):
            raise TypeError(f"'fixed' must be a Pattern or a str (got {type(fixed).__name__})")
        self.heads, self.head_channels, self.clusters = heads, head_channels, clusters
        self.preset, self.distribution, self.exploration = preset, distribution, exploration
        self.estimator = estimator
        self.fixed = None if fixed is None else PatternSource(fixed)
        num_mlps = heads if preset == 'paper' else 1
        self.centroid = nn.Parameter(torch.empty(heads, clusters, head_channels))
        self.weight1 = nn.Parameter(torch.empty(num_mlps, head_channels, head_channels))
        self.bias1 = nn.Parameter(torch.empty(num_mlps, 1, head_channels))
        self.weight2 = nn.Parameter(torch.empty(num_mlps, head_channels, head_channels))
        self.bias2 = nn.Parameter(torch.empty(num_mlps, 1, head_channels))
        self.reset_parameters()

    def arguments(self) -> dict[str, Any]:
        if self.is_causal:
            raise ValueError("a causal block model cannot be saved; save the source on which "
                             "causal() was called, and call causal() again after loading")
        names = ('heads', 'head_channels', 'clusters', 'preset', 'distribution', 'exploration',
                 'estimator')
        fixed = None if self.fixed is None else self.fixed.arguments()['pattern']
        return {name: getattr(self, name) for name in names} | {'fixed': fixed}

    def reset_parameters(self) -> None:
        """Draw clusters as ``torch.nn.init.kaiming_normal_`` does, and the weights of the MLPs as
        ``torch.nn.Linear`` does."""
        fan_in = self.head_channels * (1 if self.preset == 'paper' else self.clusters)
        nn.init.normal_(self.centroid, std=math.sqrt(2 / fan_in))
        bound = 1 / math.sqrt(self.head_channels)
        for parameter in (self.weight1, self.bias1, self.weight2, self.bias2):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        placement: Placement = LOCAL,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph:
        self.check_tokens(query, key, ptr, key_ptr, generator)
        factors = self._factors(query, key)
        if placement is not LOCAL:
            return self._rows(factors, check_shard(placement), generator)
        return self._sample(factors, ptr, key_ptr, generator)

    @torch.compiler.disable(reason='the edges depend on the values of the tokens')
    def _sample(self, factors: tuple[Tensor, Tensor, Tensor], ptr: Tensor, key_ptr: Tensor | None,
                generator: torch.Generator | None) -> BipartiteGraph:
        model = self._model(factors, ptr, key_ptr)
        graph = DISTRIBUTIONS[self.distribution](model, generator)
        graph = graph.causal() if self.is_causal else graph
        fixed = None if self.fixed is None else self.fixed.graph(ptr, generator, key_ptr=key_ptr)
        return self._with_fixed(graph, fixed, model)

    def _with_fixed(self, graph: BipartiteGraph, fixed: BipartiteGraph | None,
                    model: FactorModel) -> BipartiteGraph:
        has_gradient = self.training and torch.is_grad_enabled()
        if fixed is not None:
            fixed = BipartiteGraph.batch([fixed] * self.heads)
            graph = graph | fixed
        # in training, with the model from which the edges were sampled
        return SampledGraph(graph, model, fixed) if has_gradient else graph

    def _rows(self, factors: tuple[Tensor, Tensor, Tensor], shard: Shard,
              generator: torch.Generator | None) -> BipartiteGraph:
        if self.is_causal:
            raise NotImplementedError("'source' must not be a causal BlockModelSource for sequence "
                                      "parallelism; run the model in one process, or build the "
                                      "model with causal=False")
        # Every process receives the memberships of the other processes' keys, heads * clusters
        # values per token, and sends back their gradients.
        query_factor, mixing, key_factor = factors
        of_token = key_factor.view(self.heads, shard.num_own, self.clusters).transpose(0, 1)
        key_factor = shard.gather(of_token).transpose(0, 1).flatten(0, 1)
        model = self._model((query_factor, mixing, key_factor), shard.own_ptr, shard.ptr)
        graph = sample_rows(model, shard, distribution=self.distribution, generator=generator)
        fixed = None if self.fixed is None else self.fixed.shard_graph(shard, generator)
        return self._with_fixed(graph, fixed, model)

    def causal(self) -> BlockModelSource:
        """Return a causal copy as in :class:`GraphSource`. The copy draws from the same
        distribution and drops the edges from later tokens."""
        source = copy.deepcopy(self)
        source.is_causal = True
        source.fixed = None if self.fixed is None else self.fixed.causal()
        return source

    def block_model(self, query: Tensor, key: Tensor, ptr: Tensor) -> FactorModel:
        """Return the FactorModel whose edge probabilities a call with these arguments samples."""
        self.check_tokens(query, key, ptr)
        return self._model(self._factors(query, key), ptr)

    def _factors(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # memberships of queries, mixing, memberships of keys; heads are folded into nodes
        if not query.dtype == key.dtype == self.centroid.dtype:
            for name, x in (('query', query), ('key', key)):
                check_place(name, x, self.centroid)
        affinity = accumulated(torch.bmm(self.centroid, self.centroid.mT))
        mixing = affinity.flatten(1).softmax(dim=1).view_as(affinity)
        query_factor, key_factor = self._memberships(query, key)
        return query_factor, mixing, key_factor

    def _model(self, factors: tuple[Tensor, Tensor, Tensor], ptr: Tensor,
               key_ptr: Tensor | None = None) -> FactorModel:
        query_factor, _, key_factor = factors
        folded = fold_ptr(ptr, self.heads, query_factor.size(0) // self.heads)
        folded_keys = folded if key_ptr is None else fold_ptr(
            key_ptr, self.heads, key_factor.size(0) // self.heads)
        exploration = self.exploration if self.training else 0.
        return FactorModel(*factors, query_ptr=folded, key_ptr=folded_keys,
                           exploration=exploration, validate=False)

    def logit_terms(self, graph: BipartiteGraph) -> dict[str, Tensor]:
        gate = graph.edge_gate
        return {} if gate is None else pass_gradient(gate, self.estimator)

    def _memberships(self, query: Tensor, key: Tensor) -> list[Tensor]:
        tokens = torch.cat((query, key)).transpose(0, 1)
        weight1, weight2 = self.weight1, self.weight2
        if self.preset == 'repo':  # only here, because expanding takes time
            weight1, weight2 = (weight.expand(self.heads, -1, -1) for weight in (weight1, weight2))
        hidden = torch.baddbmm(self.bias1, tokens, weight1).relu_()
        embedding = torch.baddbmm(self.bias2, hidden, weight2)
        centroid = self.centroid.mT
        # Also under autocast, because half precision is too coarse near probabilities 0 and 1.
        return [accumulated(torch.bmm(part, centroid)).sigmoid_().flatten(0, 1)
                for part in embedding.split((query.size(0), key.size(0)), dim=1)]

    def __or__(self, edges: Edges) -> StructureSource:
        return StructureSource(self, edges)

    def extra_repr(self) -> str:
        return (f'heads={self.heads}, head_channels={self.head_channels}, '
                f'clusters={self.clusters}, preset={self.preset!r}, '
                f'distribution={self.distribution!r}')
