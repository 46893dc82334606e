"""Masks over the hop distances between the nodes of a graph, learned for each head."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphattn._checks import check_generator, check_number, check_sides
from graphattn._tensors import host_copy, index_dtype, outside_transforms
from graphattn.graphs.cache import GRAPHS
from graphattn.graphs.from_pyg import Edges, check_edges, identity_of
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import Segments
from graphattn.sources.base import GraphSource, fold_ptr
from graphattn.sources.gumbel_sigmoid import draw_values
from graphattn.sources.structure_source import check_among_tokens, graph_of_edges


class HopMaskSource(GraphSource):
    r"""Learn for each head at which hop distances nodes attend to one another.

    A head has a logit :math:`\alpha_d` for each distance :math:`d = 1, \dots, D` along the edges of
    the data. Nodes always attend to themselves. In training, each pass draws the distances that are
    on, as SparseBERT draws its masks:

    .. math::
        M_d = \mathbb{1}[\alpha_d + \varepsilon_d > 0], \qquad \varepsilon_d \sim
        \mathrm{Logistic}(0, 1),

    with a straight-through gradient to :math:`\operatorname{sigmoid}((\alpha_d + \varepsilon_d) /
    \tau)`, which acts as the bias :math:`-c \, (1 - M_d)` on the logits of pairs at distance d. In
    evaluation a distance is on where :math:`\alpha_d > 0`.

    The edges of the data change with the batch, so each call of a layer gets ``source | edges`` as
    its source.

    Args:
        heads (int): Number of heads.
        max_hops (int): The largest distance D. Nodes further apart do not attend to one another.
        edges (Tensor, SparseTensor or BipartiteGraph, optional): Edges of the batch in the next
            call, as in :class:`StructureSource`.
        temperature (float): The temperature :math:`\tau` of the relaxation.
        logit_drop (float): The factor c of the gradient.

    Raises:
        TypeError, ValueError: An argument is of the wrong type or out of range.

    Source: SparseBERT, Sec. 4.1, with distances instead of positions.

    Example:
        >>> import torch
        >>> from graphattn.layers import GraphAttention
        >>> from graphattn.sources import HopMaskSource
        >>> path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        >>> source = HopMaskSource(heads=2, max_hops=2).eval()
        >>> _ = source.logit.data.copy_(torch.tensor([[1., -1.], [-1., 1.]]))
        >>> out, graph = GraphAttention(8, 2)(torch.randn(4, 8), torch.tensor([0, 4]),
        ...                                   source=source | path, return_graph=True)
        >>> graph.num_edges  # 4 + 6 of the first head, 4 + 4 of the second
        18
    """

    per_head = True

    def __init__(self, heads: int, max_hops: int = 8, *, edges: Edges | None = None,
                 temperature: float = 1., logit_drop: float = 10.):
        super().__init__()
        check_sides(heads=heads, max_hops=max_hops)
        for name, number in (('temperature', temperature), ('logit_drop', logit_drop)):
            check_number(name, number, 'positive and finite')
        self.heads, self.max_hops = heads, max_hops
        self.edges = None if edges is None else check_edges(edges)
        self.temperature, self.logit_drop = temperature, logit_drop
        self.logit = nn.Parameter(torch.empty(heads, max_hops))
        self.reset_parameters()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that build this source again, except the edges, which belong to a
        batch."""
        return {'heads': self.heads, 'max_hops': self.max_hops, 'temperature': self.temperature,
                'logit_drop': self.logit_drop}

    def reset_parameters(self) -> None:
        """Draw the logits of all distances from a narrow normal distribution."""
        nn.init.normal_(self.logit, std=1e-3)

    def __or__(self, edges: Edges) -> HopMaskSource:
        """Return a source that shares the parameters of this one and has the ``edges`` of a
        batch."""
        source = copy.copy(self)
        source.edges = check_edges(edges)
        return source

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> HopGraph:
        """Return the graph over all sequences. The arguments are those of :class:`GraphSource`.

        Raises:
            ValueError: As in :class:`GraphSource`; or no ``edges`` are given, ``edges`` are on
                another device, a node of ``edges`` is out of range, or an edge joins two sequences.
        """
        self.check_tokens(query, key, ptr)
        check_generator(generator)
        if self.edges is None:
            raise ValueError("'edges' must be the edges between which distances are measured (got "
                             "None); pass source=source | edge_index to the layer")
        check_among_tokens(self.edges, query.device, key_ptr)
        is_on = (draw_values(self.logit, self.temperature, generator) if self.training
                 else (self.logit.detach() > 0).to(self.logit.dtype))
        return self._graph(is_on, ptr, query.size(0))

    @torch.compiler.disable(reason='the edges depend on the values of parameters')
    def _graph(self, is_on: Tensor, ptr: Tensor, num_tokens: int) -> HopGraph:
        edges = identity_of(self.edges)
        place = self.max_hops, *host_copy(ptr).tolist()
        cache_key = None if edges is None else (*edges, 'hops', *place)
        pairs = GRAPHS.get(cache_key, lambda: pairs_within(
            graph_of_edges(self.edges, ptr, num_tokens), self.max_hops))
        return HopGraph(pairs, is_on, ptr, self.logit_drop)

    def logit_terms(self, graph: BipartiteGraph) -> dict[str, Tensor]:
        bias = graph.edge_bias if isinstance(graph, HopGraph) else None
        return {} if bias is None else {'edge_bias': bias}

    def extra_repr(self) -> str:
        return f'heads={self.heads}, max_hops={self.max_hops}'


class NearPairs(NamedTuple):
    """Pairs of nodes that are joined by a path of few edges, sorted by query and then by key. Each
    field is int64 ``[num_pairs]``."""

    query: Tensor  # int64 [num_pairs]
    key: Tensor
    hops: Tensor  # int64 [num_pairs], 0 for a node and itself


class HopGraph(BipartiteGraph):
    """Graph whose edges join nodes at the hop distances that are on. Each head has its own graph.

    Args:
        pairs (NearPairs): All pairs up to the largest distance D.
        is_on (Tensor): 1 for the distances 1 to D that are on in each head, else 0, ``[heads, D]``.
            The values may require a gradient.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        logit_drop (float): Factor of the gradient of ``is_on``.

    Attributes:
        edge_bias (Tensor, optional): Zeros ``[num_edges]`` that are added to the logits and pass
            their gradient to ``is_on``; ``None`` if ``is_on`` needs no gradient.
    """

    def __init__(self, pairs: NearPairs, is_on: Tensor, ptr: Tensor, logit_drop: float):
        heads, num_tokens = len(is_on), int(host_copy(ptr)[-1])
        with outside_transforms():
            chosen = F.pad(is_on.detach() > 0, (1, 0), value=True)
            edges = [chosen[head][pairs.hops].nonzero().flatten() for head in range(heads)]
            first = torch.arange(heads).repeat_interleave(
                torch.tensor([len(own) for own in edges])).to(ptr.device)
            edge = torch.cat(edges)
            degree = torch.bincount(pairs.query[edge] + first * num_tokens,
                                    minlength=heads * num_tokens)
            indptr = F.pad(degree.cumsum(0), (1, 0))
            key = (pairs.key[edge] + first * num_tokens).to(index_dtype(heads * num_tokens))
        folded = fold_ptr(ptr, heads, num_tokens)
        self._fill(indptr, key, heads * num_tokens, Segments(folded, folded), None)
        self.edge_bias = None
        if is_on.requires_grad and torch.is_grad_enabled():
            exact = is_on.to(torch.promote_types(is_on.dtype, torch.float32))
            bias = F.pad(logit_drop * (exact - 1), (1, 0))
            value = pairs.hops[edge] + first * bias.size(1)
            self.edge_bias = bias.flatten().index_select(0, value)

    def __reduce_ex__(self, protocol: int) -> tuple:
        no_edges = torch.empty(2, 0, dtype=torch.long)
        return BipartiteGraph, (no_edges, 0), super().__getstate__()


def pairs_within(graph: BipartiteGraph, max_hops: int) -> NearPairs:
    """Return all pairs of nodes that a path of at most ``max_hops`` edges joins, from key to query,
    including each node with itself."""
    step = graph.with_self_loops().to_scipy().astype(np.int32)
    reached = times_reached = sp.eye_array(graph.num_queries, dtype=np.int32, format='csr')
    for _ in range(max_hops):
        further = step @ reached
        if further.nnz == reached.nnz:
            break
        further.data[:] = 1
        reached, times_reached = further, times_reached + further
    times_reached.sort_indices()
    hops = times_reached.data.max(initial=0) - times_reached.data  # a node has reached itself first
    query = np.repeat(np.arange(graph.num_queries), np.diff(times_reached.indptr))
    return NearPairs(*(torch.from_numpy(each.astype(np.int64)).to(graph.device)
                       for each in (query, times_reached.indices, hops)))
