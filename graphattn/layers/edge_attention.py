"""Edge-softmax attention as a PyG message-passing layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

from graphattn import functional
from graphattn.diffusion import (
    check_hops,
    check_recompute,
    check_teleport,
    diffuse,
    is_one_hop,
    spread_teleport,
)
from graphattn.graph import BipartiteGraph
from graphattn.kernels.gather import edge_logit


class EdgeAttention(MessagePassing):
    r"""Attention as message passing: keys send their values, weighted, to the queries.

    The operator of :func:`graphattn.functional.edge_attention`, in two ways that agree:

    - **fused**, for a :class:`BipartiteGraph`: ``message_and_aggregate`` hands the sorted edges to
      a kernel;
    - **explicit**, through ``edge_update`` and ``message``: taken for a plain ``edge_index`` in
      any order, while an explainer is at work, when a message hook is registered, and when the
      attention weights are asked for. ``alpha`` is an argument of ``message``, which is where
      PyG's ``AttentionExplainer`` looks for it.

    With more hops than one the weights, computed once, are used for each:
    :func:`graphattn.functional.attention_diffusion`. For the backward pass the fused way then
    keeps query, key and value, and hops x values; with ``recompute`` query, key and value alone,
    and the backward pass takes the forward pass once more. By ``backend='numba'`` no weights are
    kept, whatever the hops.

    Args:
        dropout (float): Probability with which a weight is zeroed in training, in all hops alike.
        hops (int or float): How many hops values travel, ``math.inf`` for the limit. More than one
            needs queries and keys that are the same tokens.
        teleport (float or sequence of float): Probability of a walk to stop before a hop, for all
            hops or for each. One hop without it is attention.
        scale (float, optional): Factor of the dot products, :math:`1/\sqrt{C}` if omitted.
        backend (str): Kernel of the fused way, see :func:`graphattn.functional.edge_attention`.
        recompute (bool): Compute weights and hops again in the backward pass instead of keeping
            them, in the fused way; dropout stays what it was, and gradients are the same bit for
            bit. Not for infinitely many hops, of which one is kept.
        **kwargs: Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Example:
        >>> import torch
        >>> from graphattn.layers import EdgeAttention
        >>> from graphattn.patterns import SlidingWindow
        >>> query, key, value = torch.randn(3, 10, 2, 8)
        >>> attention = EdgeAttention()
        >>> graph = SlidingWindow(1).build(10)
        >>> out, (edge_index, alpha) = attention(query, key, value, graph,
        ...                                      return_attention_weights=True)
        >>> out.shape, alpha.shape
        (torch.Size([10, 2, 8]), torch.Size([28, 2]))
        >>> torch.allclose(out, attention(query, key, value, graph), atol=1e-6)
        True
    """

    SUPPORTS_FUSED_EDGE_INDEX = True

    def __init__(self, dropout: float = 0., scale: float | None = None, backend: str = 'auto', *,
                 hops: int | float = 1, teleport: float | Sequence[float] = 0.,
                 recompute: bool = False, **kwargs):
        kwargs.setdefault('aggr', 'add')
        super().__init__(node_dim=0, **kwargs)
        if not 0. <= dropout < 1.:
            raise ValueError(f"'dropout' must be in [0, 1) (got {dropout})")
        if backend != 'auto':
            functional.kernels.load(backend)
        check_hops(hops)
        check_teleport(teleport, hops)
        check_recompute(recompute, hops)
        self.dropout = dropout
        self.hops = hops
        self.teleport = teleport
        self.scale = scale
        self.backend = backend
        self.recompute = recompute

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        graph: BipartiteGraph | Tensor,
        *,
        edge_bias: Tensor | None = None,
        edge_gate: Tensor | None = None,
        teleport: Tensor | None = None,
        return_attention_weights: bool = False,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attends along the edges.

        Args:
            query (Tensor): ``[num_queries, heads, channels]``.
            key (Tensor): ``[num_keys, heads, channels]``.
            value (Tensor): ``[num_keys, heads, value_channels]``.
            graph (BipartiteGraph or Tensor): The edges; a plain ``edge_index`` ``[2, num_edges]``
                (key over query) may be in any order, but holds each edge once.
            edge_bias (Tensor, optional): ``[num_edges]`` or ``[num_edges, heads]``.
            edge_gate (Tensor, optional): As ``edge_bias``.
            teleport (Tensor, optional): Instead of the layer's own, what broadcasts to ``[hops,
                num_queries, heads]``.
            return_attention_weights (bool): Return ``(out, (edge_index, alpha))``.

        Returns:
            Tensor ``[num_queries, heads, value_channels]``; ``alpha`` is ``[num_edges, heads]``.

        Raises:
            ValueError, TypeError: As :func:`graphattn.functional.edge_attention` and
                :func:`graphattn.functional.attention_diffusion`, or ``edge_index`` holds an edge
                twice.
        """
        teleport = self.teleport if teleport is None else teleport
        wants_messages = (self.explain or return_attention_weights
                          or self._message_forward_hooks or self._message_forward_pre_hooks)
        dtype, alpha = query.dtype, None
        if isinstance(graph, BipartiteGraph) and not wants_messages:
            edge_index = graph.edge_index
        else:
            edge_index, graph = _edges_in_given_order(graph, query.size(0), key.size(0))
            edge_bias, edge_gate = functional.check_arguments(query, key, value, graph,
                                                              edge_bias, edge_gate)
            query, key, value = (x.to(torch.promote_types(dtype, torch.float))
                                 for x in (query, key, value))
            alpha = self.edge_updater(edge_index, query=query, key=key, edge_bias=edge_bias,
                                      edge_gate=edge_gate)

        def one_hop(z: Tensor) -> Tensor:
            return self.propagate(edge_index, size=(graph.num_keys, graph.num_queries),
                                  query=query, key=key, value=z, alpha=alpha, graph=graph,
                                  edge_bias=edge_bias, edge_gate=edge_gate, teleport=teleport)

        if alpha is None or is_one_hop(self.hops, teleport):
            out = one_hop(value)  # the fused way takes all hops in one
        else:
            functional.check_square(graph)
            chance = spread_teleport(teleport, self.hops, value)
            out = diffuse(one_hop, value, chance.unsqueeze(-1),
                          to_the_limit=self.hops == math.inf)
        out = out.to(dtype)
        return (out, (edge_index, alpha.to(dtype))) if return_attention_weights else out

    def edge_update(self, query_i: Tensor, key_j: Tensor, edge_bias: Tensor | None,
                    edge_gate: Tensor | None, index: Tensor, size_i: int | None) -> Tensor:
        logit = edge_logit((query_i * key_j).sum(dim=-1), edge_bias, edge_gate,
                           self._scale(key_j))
        alpha = softmax(logit, index, num_nodes=size_i)
        return F.dropout(alpha, self.dropout, self.training)

    def message(self, value_j: Tensor, alpha: Tensor) -> Tensor:
        return alpha.unsqueeze(-1) * value_j

    def message_and_aggregate(self, edge_index: EdgeIndex, query: Tensor, key: Tensor,
                              value: Tensor, graph: BipartiteGraph, edge_bias: Tensor | None,
                              edge_gate: Tensor | None,
                              teleport: float | Sequence[float] | Tensor) -> Tensor:
        arguments = {'edge_bias': edge_bias, 'edge_gate': edge_gate, 'scale': self.scale,
                     'hops': self.hops, 'teleport': teleport, 'backend': self.backend,
                     'dropout_p': self.dropout if self.training else 0.}
        if self.recompute and not is_one_hop(self.hops, teleport):
            return checkpoint(functional.edge_attention, query, key, value, graph, **arguments,
                              use_reentrant=False)
        return functional.edge_attention(query, key, value, graph, **arguments)

    def _scale(self, key: Tensor) -> float:
        return 1 / math.sqrt(max(key.size(-1), 1)) if self.scale is None else self.scale

    def __repr__(self) -> str:
        return (f'{type(self).__name__}(dropout={self.dropout}, backend={self.backend!r}, '
                f'hops={self.hops}, teleport={self.teleport}, recompute={self.recompute})')


def _edges_in_given_order(
    graph: BipartiteGraph | Tensor, num_queries: int, num_keys: int,
) -> tuple[Tensor, BipartiteGraph]:
    if isinstance(graph, BipartiteGraph):
        return graph.edge_index.as_tensor(), graph
    edge_index = graph.as_tensor() if isinstance(graph, EdgeIndex) else graph
    graph = BipartiteGraph.from_edge_index(edge_index, num_queries, num_keys)
    if graph.num_edges != edge_index.size(1):
        raise ValueError(f"'graph' must hold each edge once (got {edge_index.size(1)} edges, "
                         f"{graph.num_edges} of them different); BipartiteGraph.from_edge_index "
                         f"merges them")
    return edge_index, graph
