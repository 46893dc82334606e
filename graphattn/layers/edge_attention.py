"""Edge-softmax attention as a PyG message-passing layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import Adj, Size

from graphattn import ops
from graphattn._checks import check_bool, check_dropout, check_floating, check_kind
from graphattn._explained import Explained
from graphattn.functional.checks import check_edge_values, check_terms, scale_of
from graphattn.functional.drive import LOCAL, Placement, drive
from graphattn.functional.recursion import check_hops, check_recompute, check_teleport, is_one_hop
from graphattn.graphs.from_pyg import SortedEdges, sort_edges
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend, LogitTerms
from graphattn.ops.backend import everywhere
from graphattn.ops.edge_math import edge_logit, edge_softmax

Nodes = Tensor | tuple[Tensor, Tensor]


class EdgeAttention(MessagePassing, Explained):
    r"""Attention as message passing: queries receive the weighted sum of the values of their keys.

    The layer computes :func:`graphattn.functional.edge_attention` in one of two equivalent ways:

    - **fused**: ``message_and_aggregate`` passes the rows of a :class:`BipartiteGraph` to a kernel.
      A plain ``edge_index`` in any order is first sorted into such a graph. The sorted graph is
      cached as long as the ``edge_index`` tensor lives and is not modified;
    - **explicit**: PyG calls ``edge_update``, ``message`` and ``aggregate``. The layer uses this
      way while an explainer is active, if attention weights are requested, or if one of these three
      methods has a hook. It also uses this way if a subclass replaces one of these methods or
      ``update``, but not ``message_and_aggregate``. The weights ``alpha`` are an argument of
      ``message``, where PyG's ``AttentionExplainer`` expects them.

    Both ways begin in ``propagate``. The fused way calls ``propagate`` once, the explicit way once
    per hop.

    Explainers and hooks on messages expect edges in the order of the caller. With an explainer or
    such a hook, the layer raises an error for a graph that was built from edges in another order
    (:attr:`BipartiteGraph.is_reordered`); pass ``edge_index`` instead of the graph.

    With several hops, the weights are computed once and used in each hop
    (:func:`graphattn.functional.attention_diffusion`). For the backward pass, the fused way stores
    query, key, value and the values after each hop. With ``recompute`` it stores only query, key
    and value, and the backward pass repeats the forward pass. ``backend='numba'`` never stores the
    weights of the edges.

    Args:
        dropout (float): Probability of zeroing a weight in training. All hops zero the same
            weights.
        hops (int or float): Number of hops that values travel; ``math.inf`` computes the limit.
            More than one hop requires that queries and keys are the same tokens.
        teleport (float or sequence of float): Share of its own value that a token keeps at each
            hop: one number for all hops, or one number for each hop. One hop without teleport is
            plain attention.
        scale (float, optional): Factor of the dot products, :math:`1/\sqrt{C}` if omitted.
        softcap (float, optional): Bound on the scaled dot products, see
            :func:`graphattn.functional.edge_attention`.
        backend (str): Kernel of the fused way, see :func:`graphattn.functional.edge_attention`.
        recompute (bool): In the fused way, compute weights and hops again in the backward pass
            instead of storing them. The same weights are dropped, and gradients are the same bit
            for bit. Not available with ``hops=math.inf``, which stores the values of only one hop.
        **kwargs: Arguments of :class:`torch_geometric.nn.MessagePassing`. ``aggr`` must be the sum,
            and ``flow`` must keep its default, because only the explicit way supports other values.

    Raises:
        ValueError: A value is out of range, the backend is unknown, or an argument of
            MessagePassing is not supported.

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
    # None keeps PyG from generating both methods for each layer. Generation takes 5 to 10 ms, and
    # reads the arguments of calls from source code, but here the arguments differ between calls.
    propagate_type = edge_updater_type = None
    _overrides_fused = _overrides_messages = False

    def __init__(self, dropout: float = 0., scale: float | None = None, backend: str = 'auto', *,
                 hops: int | float = 1, teleport: float | Sequence[float] = 0.,
                 softcap: float | None = None, recompute: bool = False, **kwargs):
        _check_message_passing(kwargs)
        super().__init__(node_dim=0, **{'aggr': 'add', **kwargs})
        check_dropout(dropout=dropout)
        check_terms(LogitTerms(scale=scale, softcap=softcap))
        ops.check_backend(backend)
        check_hops(hops)
        check_teleport(teleport, hops)
        check_recompute(recompute, hops)
        self.dropout = dropout
        self.hops = hops
        self.teleport = teleport
        self.scale = scale
        self.softcap = softcap
        self.backend = backend
        self.recompute = recompute

    def forward(
        self,
        query: Nodes,
        key: Nodes,
        value: Nodes,
        graph: BipartiteGraph | Tensor,
        *,
        edge_bias: Tensor | None = None,
        edge_gate: Tensor | None = None,
        sink: Tensor | None = None,
        teleport: Tensor | None = None,
        placement: Placement = LOCAL,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the output of attention along the edges, and optionally the weights.

        Args:
            query (Tensor): ``[num_queries, heads, channels]``. With a plain ``edge_index``,
                ``query``, ``key`` and ``value`` may each be a pair as in PyG: a tensor of the
                source nodes and a tensor of the target nodes.
            key (Tensor): ``[num_keys, num_kv_heads, channels]``; ``num_kv_heads`` divides
                ``heads``.
            value (Tensor): ``[num_keys, num_kv_heads, value_channels]``.
            graph (BipartiteGraph or Tensor): The edges. A plain ``edge_index`` ``[2, num_edges]``
                has keys in its first row and queries in its second. Its edges may be in any order,
                but each edge must occur only once.
            edge_bias (Tensor, optional): ``[num_edges]`` or ``[num_edges, heads]``, in the order of
                ``graph.edge_index``, or of a plain ``edge_index``.
            edge_gate (Tensor, optional): Factor of the logits, shaped and ordered as ``edge_bias``.
            sink (Tensor, optional): One more logit of each query, ``[heads]``.
            teleport (Tensor, optional): Replaces the teleport of the layer; broadcasts to ``[hops,
                num_queries, heads]``.
            placement (Placement): Where keys and values lie, if not in ``key`` and ``value``, and
                whether each head has its own graph (:mod:`graphattn.placement`).
            return_attention_weights (bool, optional): Return ``(out, (edge_index, alpha))``,
                whether the argument is True or False, as PyG's layers do.

        Returns:
            Tensor ``[num_queries, heads, value_channels]``. With weights, ``(out, (edge_index,
            alpha))``: this tensor, the edges ``[2, num_edges]``, and their weights ``[num_edges,
            heads]``.

        Raises:
            ValueError, TypeError: See :func:`graphattn.functional.edge_attention` and
                :func:`graphattn.functional.attention_diffusion`. A ValueError is also raised if
                ``graph`` contains an edge twice.
        """
        if not isinstance(graph, BipartiteGraph):
            # Of a pair (source nodes, target nodes) as in PyG, queries are the target nodes.
            query, key, value = (
                nodes[end] if isinstance(nodes, tuple) and len(nodes) == 2 else nodes
                for nodes, end in ((query, 1), (key, 0), (value, 0)))
            check_floating(query=query, key=key)
            if not isinstance(graph, Tensor):
                raise TypeError(f"'graph' must be a BipartiteGraph, or edge_index as a Tensor (got "
                                f"{type(graph).__name__})")
        if not isinstance(placement, Placement):
            check_kind('placement', placement, Placement)
        teleport = self.teleport if teleport is None else teleport
        if return_attention_weights is not None:
            check_bool(return_attention_weights=return_attention_weights)
        if (return_attention_weights is not None or self._overrides_messages or self.explain
                or has_hooks(self, _ON_MESSAGES)):
            terms = LogitTerms(edge_bias, edge_gate, self.scale, softcap=self.softcap,
                               sink=sink)  # edge_update drops weights
            return self._explicit(query, key, value, graph, terms, teleport, placement,
                                  return_attention_weights)
        if not isinstance(graph, BipartiteGraph):
            edges = _sorted(graph, query.size(0), key.size(0))
            graph = edges.graph
            check_edge_values('edge_bias', edge_bias, query, graph)
            check_edge_values('edge_gate', edge_gate, query, graph)
            edge_bias, edge_gate = edges.sort(edge_bias), edges.sort(edge_gate)
        terms = LogitTerms(edge_bias, edge_gate, self.scale,
                           self.dropout if self.training else 0., self.softcap, sink)
        return self.propagate(graph, query=query, key=key, value=value, graph=graph,
                              terms=terms, teleport=teleport, placement=placement)

    def propagate(self, edge_index: BipartiteGraph | Adj, size: Size = None,
                  **kwargs: Any) -> Tensor:
        """Return the weighted sums of values at the queries, as PyG's ``propagate`` does.

        For a graph, this method calls ``message_and_aggregate`` directly, unless hooks or a
        subclass need PyG's ``propagate``. The preparations in PyG's ``propagate`` would take as
        long as attention over 60 tokens.
        """
        if isinstance(edge_index, BipartiteGraph):
            if not (self._overrides_fused or has_hooks(self, _ON_FUSED)):
                return self.message_and_aggregate(edge_index, **kwargs)
            edge_index = edge_index.edge_index
        return super().propagate(edge_index, size, **kwargs)

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls._overrides_fused = overrides(cls, EdgeAttention, 'message_and_aggregate')
        cls._overrides_messages = not cls._overrides_fused and overrides(
            cls, EdgeAttention, *_MESSAGE_STEPS, 'update')

    def _explicit(
        self, query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph | Tensor,
        terms: LogitTerms, teleport: float | Sequence[float] | Tensor, placement: Placement,
        return_attention_weights: bool | None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        if has_hooks(self, _ON_MESSAGE_AND_AGGREGATE):
            raise ValueError("hooks on 'message_and_aggregate' never fire if attention weights, an "
                             "explainer, or hooks on 'edge_update', 'message' or 'aggregate' need "
                             "explicit messages; remove the hooks on 'message_and_aggregate'")
        is_watched = self.explain or has_hooks(self, _ON_MESSAGES)
        if is_watched and isinstance(graph, BipartiteGraph) and graph.is_reordered:
            raise ValueError("'graph' must have its edges in the order in which they were passed, "
                             "because explainers and hooks expect this order (got a graph that "
                             "sorted its edges); pass 'edge_index' instead of the graph")
        edge_index, graph = _edges_in_given_order(graph, query.size(0), key.size(0))
        out, alpha = drive(query, key, value, graph, terms, self.hops, teleport, placement,
                           backend=self._messages(edge_index, graph, teleport),
                           needs_weights=True)
        return out if return_attention_weights is None else (out, (edge_index, alpha))

    def _messages(self, edge_index: Tensor, graph: BipartiteGraph,
                  teleport: float | Sequence[float] | Tensor) -> Backend:
        # By PyG's edge_updater and propagate, so that hooks and explainers see the messages.
        # edge_index is in the caller's order.
        given, told = graph, {}

        def edges(graph: BipartiteGraph) -> Tensor:
            return edge_index if graph is given else torch.stack([graph.key, graph.query])

        def weigh(query: Tensor, key: Tensor, graph: BipartiteGraph, terms: LogitTerms) -> Tensor:
            told.update(query=query, key=key, edge_bias=terms.bias, edge_gate=terms.gate,
                        sink=terms.sink)
            return self.edge_updater(edges(graph), **told)

        def add_up(alpha: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
            return self.propagate(edges(graph), size=(graph.num_keys, graph.num_queries),
                                  value=value, alpha=alpha, graph=graph, teleport=teleport, **told)

        return Backend('messages', everywhere, attention_weights=weigh, weighted_sum=add_up)

    def edge_update(self, query_i: Tensor, key_j: Tensor, edge_bias: Tensor | None,
                    edge_gate: Tensor | None, sink: Tensor | None, index: Tensor,
                    size_i: int | None) -> Tensor:
        scale = scale_of(key_j) if self.scale is None else self.scale
        terms = LogitTerms(edge_bias, edge_gate, scale, softcap=self.softcap)
        alpha = edge_softmax(edge_logit((query_i * key_j).sum(dim=-1), terms), index, size_i, sink)
        return F.dropout(alpha, self.dropout, self.training)

    def message(self, value_j: Tensor, alpha: Tensor) -> Tensor:
        return alpha.unsqueeze(-1) * value_j

    def message_and_aggregate(self, edge_index: BipartiteGraph | EdgeIndex, query: Tensor,
                              key: Tensor, value: Tensor, graph: BipartiteGraph, terms: LogitTerms,
                              teleport: float | Sequence[float] | Tensor,
                              placement: Placement) -> Tensor:
        run = drive
        if (self.recompute and placement.has_all_values
                and not is_one_hop(self.hops, teleport)):
            run = partial(checkpoint, drive, use_reentrant=False)
        out, _ = run(query, key, value, graph, terms, self.hops, teleport, placement,
                     backend=self.backend)
        return out

    def __repr__(self) -> str:
        return (f'{type(self).__name__}(dropout={self.dropout}, backend={self.backend!r}, '
                f'hops={self.hops}, teleport={self.teleport}, recompute={self.recompute})')


def hooks_on(*steps: str) -> list[str]:
    """Return the attributes in which PyG's layers store hooks on ``steps``, such as
    ``'message'``."""
    return [f'_{step}_forward_{when}hooks' for step in steps for when in ('', 'pre_')]


def has_hooks(layer: MessagePassing, names: Sequence[str]) -> bool:
    own = layer.__dict__
    for name in names:
        if own[name]:
            return True
    return False


def overrides(layer: type[MessagePassing], base: type[MessagePassing], *steps: str) -> bool:
    return any(getattr(layer, step) is not getattr(base, step) for step in steps)


_MESSAGE_STEPS = 'edge_update', 'message', 'aggregate'
_ON_MESSAGES = hooks_on(*_MESSAGE_STEPS)
_ON_MESSAGE_AND_AGGREGATE = hooks_on('message_and_aggregate')
_ON_FUSED = [*hooks_on('propagate'), *_ON_MESSAGE_AND_AGGREGATE]


def _check_message_passing(kwargs: dict) -> None:
    for name, honoured in (('aggr', ('add', 'sum')), ('flow', ('source_to_target',)),
                           ('decomposed_layers', (1,))):
        if kwargs.get(name, honoured[0]) not in honoured:
            raise ValueError(f"'{name}' must be {' or '.join(map(repr, honoured))}, because "
                             f"attention sums the weighted values of keys at queries (got "
                             f"{kwargs[name]!r})")


@torch.compiler.disable(reason='edges are sorted, and compared with one another')
def _edges_in_given_order(
    graph: BipartiteGraph | Tensor, num_queries: int, num_keys: int,
) -> tuple[Tensor, BipartiteGraph]:
    if isinstance(graph, BipartiteGraph):
        return torch.stack([graph.key, graph.query]), graph
    edge_index = graph.as_tensor() if isinstance(graph, EdgeIndex) else graph
    return edge_index, _sorted(edge_index, num_queries, num_keys).graph


def _sorted(edges: Tensor, num_queries: int, num_keys: int) -> SortedEdges:
    try:
        return sort_edges(edges, num_queries, num_keys)
    except (TypeError, ValueError) as error:  # which name the argument of from_edge_index
        raise type(error)(str(error).replace("'edge_index", "'graph")) from None
