"""Edge-softmax attention as a PyG message-passing layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing

from graphattn import ops
from graphattn._checks import check_bool, check_dropout, check_floating, check_kind, check_number
from graphattn.functional.checks import check_edge_values, scale_of
from graphattn.functional.drive import LOCAL, Placement, drive
from graphattn.functional.recursion import (
    check_hops,
    check_recompute,
    check_teleport,
    is_one_hop,
)
from graphattn.graphs.from_pyg import sort_edges
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend, LogitTerms
from graphattn.ops.backend import everywhere
from graphattn.ops.edge_math import edge_logit, edge_softmax


class EdgeAttention(MessagePassing):
    r"""Attention as message passing: keys send their values, weighted, to the queries.

    The operator of :func:`graphattn.functional.edge_attention`, in two ways that agree:

    - **fused**: ``message_and_aggregate`` hands the rows of a :class:`BipartiteGraph` to a kernel.
      A plain ``edge_index`` in any order becomes such a graph first, by a sort that is kept for as
      long as it lives and is not changed;
    - **explicit**, through ``edge_update``, ``message`` and ``aggregate``: taken while an explainer
      is at work, when a hook on one of the three is registered, and when the attention weights are
      asked for. ``alpha`` is an argument of ``message``, which is where PyG's
      ``AttentionExplainer`` looks for it.

    Explainers, and hooks on the messages, take edges in the order in which they know them. They are
    refused for a graph that was made of edges in another order
    (:attr:`BipartiteGraph.is_reordered`): pass ``edge_index`` itself.

    With more hops than one the weights, computed once, are used for each:
    :func:`graphattn.functional.attention_diffusion`. For the backward pass the fused way then
    keeps query, key and value, and hops x values; with ``recompute`` query, key and value alone,
    and the backward pass takes the forward pass once more. By ``backend='numba'`` no weights are
    kept, whatever the hops.

    Args:
        dropout (float): Probability with which a weight is zeroed in training, in all hops alike.
        hops (int or float): How many hops values travel, ``math.inf`` for the limit. More than one
            needs queries and keys that are the same tokens.
        teleport (float or sequence of float): Share of its own value that a token keeps at each
            hop, one for all hops or one for each. One hop without it is attention.
        scale (float, optional): Factor of the dot products, :math:`1/\sqrt{C}` if omitted.
        backend (str): Kernel of the fused way, see :func:`graphattn.functional.edge_attention`.
        recompute (bool): Compute weights and hops again in the backward pass instead of keeping
            them, in the fused way; dropout stays what it was, and gradients are the same bit for
            bit. Not for infinitely many hops, of which one is kept.
        **kwargs: Arguments of :class:`torch_geometric.nn.MessagePassing`, but for those that only
            one of the two ways would honour: another ``aggr`` than the sum, another ``flow``.

    Raises:
        ValueError: A number is out of range, the backend is unknown, or an argument of
            MessagePassing is one that is not honoured.

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
    # PyG would write propagate() anew with arguments that it reads from the sources, for each layer
    # again in 10 ms; ours are not the same in every call.
    propagate_type = None

    def __init__(self, dropout: float = 0., scale: float | None = None, backend: str = 'auto', *,
                 hops: int | float = 1, teleport: float | Sequence[float] = 0.,
                 recompute: bool = False, **kwargs):
        _check_message_passing(kwargs)
        super().__init__(node_dim=0, **{'aggr': 'add', **kwargs})
        check_dropout(dropout=dropout)
        if scale is not None:
            check_number('scale', scale, 'finite')
        ops.check_backend(backend)
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
        placement: Placement = LOCAL,
        return_attention_weights: bool = False,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attend along the edges.

        Args:
            query (Tensor): ``[num_queries, heads, channels]``.
            key (Tensor): ``[num_keys, num_kv_heads, channels]``, of as many heads as ``query`` or
                of a number that divides it.
            value (Tensor): ``[num_keys, num_kv_heads, value_channels]``.
            graph (BipartiteGraph or Tensor): The edges; a plain ``edge_index`` ``[2, num_edges]``
                (key over query) may be in any order, but holds each edge once.
            edge_bias (Tensor, optional): ``[num_edges]`` or ``[num_edges, heads]``, in the order of
                ``graph.edge_index``, or of ``edge_index`` as it is given.
            edge_gate (Tensor, optional): As ``edge_bias``.
            teleport (Tensor, optional): Instead of the layer's own, what broadcasts to ``[hops,
                num_queries, heads]``.
            placement (Placement): Where keys and values are, if not in the tensors that are given
                (:mod:`graphattn.placement`), and whether heads own a graph each.
            return_attention_weights (bool): Return ``(out, (edge_index, alpha))``.

        Returns:
            Tensor ``[num_queries, heads, value_channels]``; ``alpha`` is ``[num_edges, heads]``.

        Raises:
            ValueError, TypeError: As :func:`graphattn.functional.edge_attention` and
                :func:`graphattn.functional.attention_diffusion`, or ``edge_index`` holds an edge
                twice.
        """
        if not isinstance(graph, BipartiteGraph):
            _check_edges(query, key, graph)
        check_bool(return_attention_weights=return_attention_weights)
        if placement is not LOCAL:
            check_kind('placement', placement, Placement)
        teleport = self.teleport if teleport is None else teleport
        hooked = self._hooked_steps()
        if self._wants_messages(hooked, return_attention_weights):
            terms = LogitTerms(edge_bias, edge_gate, self.scale)  # messages drop weights
            return self._explicit(query, key, value, graph, terms, teleport, placement,
                                  return_attention_weights)
        if not isinstance(graph, BipartiteGraph):
            edges = sort_edges(graph, query.size(0), key.size(0))
            graph = edges.graph
            check_edge_values('edge_bias', edge_bias, query, graph)
            check_edge_values('edge_gate', edge_gate, query, graph)
            edge_bias, edge_gate = edges.sort(edge_bias), edges.sort(edge_gate)
        terms = LogitTerms(edge_bias, edge_gate, self.scale,
                           self.dropout if self.training else 0.)
        if hooked:  # which PyG lets fire
            return self.propagate(graph.edge_index, size=(graph.num_keys, graph.num_queries),
                                  query=query, key=key, value=value, graph=graph, alpha=None,
                                  terms=terms, teleport=teleport, placement=placement)
        return self.message_and_aggregate(None, query, key, value, graph, terms, teleport,
                                          placement)

    def _wants_messages(self, hooked: set[str], return_attention_weights: bool) -> bool:
        wants_messages = (self.explain or return_attention_weights
                          or not hooked.isdisjoint(_MESSAGE_STEPS))
        if wants_messages and 'message_and_aggregate' in hooked:
            raise ValueError("hooks on 'message_and_aggregate' never fire while messages are "
                             "formed, as they are for weights, explainers and hooks on "
                             "'edge_update', 'message' or 'aggregate'; remove them")
        return wants_messages

    def _hooked_steps(self) -> set[str]:
        """Return the steps of message passing that have hooks."""
        own = self.__dict__
        return {step for step, *hooks in _HOOKS if own[hooks[0]] or own[hooks[1]]}

    def _explicit(
        self, query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph | Tensor,
        terms: LogitTerms, teleport: float | Sequence[float] | Tensor, placement: Placement,
        return_attention_weights: bool,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        is_watched = self.explain or not self._hooked_steps().isdisjoint(_MESSAGE_STEPS)
        if is_watched and isinstance(graph, BipartiteGraph) and graph.is_reordered:
            raise ValueError("'graph' has its edges in another order than they were given in, by "
                             "which an explainer or a hook would take them; pass 'edge_index' "
                             "itself")
        edge_index, graph = _edges_in_given_order(graph, query.size(0), key.size(0))
        out, alpha = drive(query, key, value, graph, terms, self.hops, teleport, placement,
                           backend=self._messages(edge_index, graph, teleport),
                           needs_weights=True)
        return (out, (edge_index, alpha)) if return_attention_weights else out

    def _messages(self, edge_index: Tensor, graph: BipartiteGraph,
                  teleport: float | Sequence[float] | Tensor) -> Backend:
        """Return PyG's way as a backend, of a graph whose edges are in the order in which they were
        given."""
        given, told = graph, {}

        def edges(graph: BipartiteGraph) -> Tensor:
            return edge_index if graph is given else torch.stack([graph.key, graph.query])

        def weigh(query: Tensor, key: Tensor, graph: BipartiteGraph, terms: LogitTerms) -> Tensor:
            told.update(query=query, key=key, edge_bias=terms.bias, edge_gate=terms.gate)
            return self.edge_updater(edges(graph), **told)

        def add_up(alpha: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
            return self.propagate(edges(graph), size=(graph.num_keys, graph.num_queries),
                                  value=value, alpha=alpha, graph=graph, teleport=teleport, **told)

        return Backend('messages', everywhere, attention_weights=weigh, weighted_sum=add_up)

    def edge_update(self, query_i: Tensor, key_j: Tensor, edge_bias: Tensor | None,
                    edge_gate: Tensor | None, index: Tensor, size_i: int | None) -> Tensor:
        logit = edge_logit((query_i * key_j).sum(dim=-1),
                           LogitTerms(edge_bias, edge_gate, self._scale(key_j)))
        alpha = edge_softmax(logit, index, size_i)
        return F.dropout(alpha, self.dropout, self.training)

    def message(self, value_j: Tensor, alpha: Tensor) -> Tensor:
        return alpha.unsqueeze(-1) * value_j

    def message_and_aggregate(self, edge_index: EdgeIndex | None, query: Tensor, key: Tensor,
                              value: Tensor, graph: BipartiteGraph, terms: LogitTerms,
                              teleport: float | Sequence[float] | Tensor,
                              placement: Placement) -> Tensor:
        run = drive
        if (self.recompute and placement.has_all_values
                and not is_one_hop(self.hops, teleport)):
            run = partial(checkpoint, drive, use_reentrant=False)
        out, _ = run(query, key, value, graph, terms, self.hops, teleport, placement,
                     backend=self.backend)
        return out

    def _scale(self, key: Tensor) -> float:
        return scale_of(key) if self.scale is None else self.scale

    def __repr__(self) -> str:
        return (f'{type(self).__name__}(dropout={self.dropout}, backend={self.backend!r}, '
                f'hops={self.hops}, teleport={self.teleport}, recompute={self.recompute})')


_MESSAGE_STEPS = 'edge_update', 'message', 'aggregate'
_HOOKS = [(step, f'_{step}_forward_hooks', f'_{step}_forward_pre_hooks')
          for step in (*_MESSAGE_STEPS, 'propagate', 'message_and_aggregate')]


def _check_edges(query: Tensor, key: Tensor, edges: Tensor) -> None:
    check_floating('query', query)
    check_floating('key', key)
    if not isinstance(edges, Tensor):
        raise TypeError(f"'graph' must be a BipartiteGraph, or edge_index as a Tensor (got "
                        f"{type(edges).__name__})")


def _check_message_passing(kwargs: dict) -> None:
    for name, honoured in (('aggr', ('add', 'sum')), ('flow', ('source_to_target',)),
                           ('decomposed_layers', (1,))):
        if kwargs.get(name, honoured[0]) not in honoured:
            raise ValueError(f"'{name}' must be {' or '.join(map(repr, honoured))}, for attention "
                             f"adds the weighted values of keys up at queries (got "
                             f"{kwargs[name]!r})")


@torch.compiler.disable(reason='edges are sorted, and compared with one another')
def _edges_in_given_order(
    graph: BipartiteGraph | Tensor, num_queries: int, num_keys: int,
) -> tuple[Tensor, BipartiteGraph]:
    if isinstance(graph, BipartiteGraph):
        return torch.stack([graph.key, graph.query]), graph
    edge_index = graph.as_tensor() if isinstance(graph, EdgeIndex) else graph
    graph, _ = BipartiteGraph.from_edge_index(edge_index, num_queries, num_keys, return_perm=True)
    return edge_index, graph
