"""Multi-head attention whose heads get their edges from a source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphattn import functional
from graphattn._checks import (
    check_bool,
    check_features,
    check_floating,
    check_generator,
    check_pointer,
    check_ptr,
    check_sides,
)
from graphattn._explained import Explained
from graphattn._tensors import host_copy, is_traced
from graphattn.functional.drive import LOCAL, Placement
from graphattn.functional.folding import repeat_heads
from graphattn.functional.recursion import check_hops, check_recompute, check_teleport
from graphattn.functional.shard import check_shard
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers.checkpointed import recomputed
from graphattn.layers.edge_attention import EdgeAttention
from graphattn.layers.rotary import check_rotation, rotate
from graphattn.ops import LogitTerms
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource, as_source
from graphattn.sources.base import add_terms, check_returned, check_same_sequences, fold_ptr


class GraphAttention(nn.Module, Explained):
    r"""Multi-head attention along the edges of a source, with the projections of queries, keys,
    values and outputs.

    .. math::
        \mathrm{Attn}(X) = \big\Vert_h \mathrm{EdgeAttention}(X W_h^Q, X W_h^K, X W_h^V, G_h) \,
        W^O, \qquad G = \mathrm{source}(X W^Q, X W^K)

    If the source returns a :class:`graphattn.graphs.pair_mask.PairMask` of soft masks instead of a
    graph, :func:`graphattn.functional.pair_attention` replaces attention along edges.

    Args:
        channels (int): Size of each token, in and out.
        heads (int): Number of attention heads.
        source (GraphSource, Pattern or str, optional): Source of the edges: a graph source, a
            pattern, or the expression of a pattern. If omitted, every call needs a source or a
            graph.
        head_channels (int, optional): Size of a head, ``channels / heads`` if omitted.
        num_kv_heads (int, optional): Number of heads of keys and values; ``heads`` if omitted.
            ``heads / num_kv_heads`` consecutive heads of queries share one head of keys and values
            (Ainslie et al., "GQA", 2023). Keys and values are repeated in memory only if each head
            has its own graph, for soft masks, and for several hops.
        bias (bool): Whether the projections have a bias.
        learn_teleport (bool): Whether each head learns its own teleport, the sigmoid of a
            parameter. A head uses the same teleport in all hops; ``teleport`` is its initial value.
        sinks (bool): Whether each head learns a sink: one more logit in the softmax of every query,
            without a value. The sinks are the parameter ``sink``, which is initialised with 0.
        recompute (bool): Store only the tokens for the backward pass, which repeats projections,
            source and hops. Gradients are the same bit for bit, unless parameters change before the
            backward pass. Not available with ``hops=math.inf`` and under ``torch.func.grad``. In
            contrast, ``recompute`` of :class:`EdgeAttention` stores query, key and value.
        **options: ``dropout``, ``hops``, ``teleport``, ``scale``, ``softcap`` and ``backend`` of
            :class:`EdgeAttention`.

    Raises:
        ValueError: ``heads`` does not divide ``channels`` and ``head_channels`` is omitted,
            ``num_kv_heads`` does not divide ``heads``, ``source`` requires another number of heads,
            or ``hops`` and ``teleport`` do not fit.

    Example:
        >>> import torch
        >>> from graphattn.layers import GraphAttention
        >>> from graphattn.sources import BlockModelSource
        >>> attention = GraphAttention(32, 4, BlockModelSource(heads=4, head_channels=8))
        >>> tokens, ptr = torch.randn(50, 32), torch.tensor([0, 20, 50])  # two sequences
        >>> attention(tokens, ptr).shape
        torch.Size([50, 32])
    """

    def __init__(self, channels: int, heads: int,
                 source: GraphSource | Pattern | str | None = None, *,
                 head_channels: int | None = None, num_kv_heads: int | None = None,
                 bias: bool = True, learn_teleport: bool = False, sinks: bool = False,
                 recompute: bool = False, **options: Any):
        super().__init__()
        num_kv_heads = heads if num_kv_heads is None else num_kv_heads
        check_sides(channels=channels, heads=heads, num_kv_heads=num_kv_heads)
        if heads % num_kv_heads != 0:
            raise ValueError(f"'num_kv_heads' must be a divisor of 'heads' (got "
                             f"num_kv_heads={num_kv_heads} and heads={heads})")
        check_bool(bias=bias, sinks=sinks)
        if head_channels is None and channels % heads != 0:
            raise ValueError(f"'channels' must be a multiple of 'heads' (got {channels} channels "
                             f"and {heads} heads); for other sizes, pass 'head_channels'")
        source = None if source is None else check_source(source, heads)
        self.channels = channels
        self.heads = heads
        self.num_kv_heads = num_kv_heads
        self.head_channels = channels // heads if head_channels is None else head_channels
        check_sides(head_channels=self.head_channels)
        inner_channels, key_channels = heads * self.head_channels, num_kv_heads * self.head_channels
        self.lin_query = nn.Linear(channels, inner_channels, bias=bias)
        self.lin_key = nn.Linear(channels, key_channels, bias=bias)
        self.lin_value = nn.Linear(channels, key_channels, bias=bias)
        self.lin_out = nn.Linear(inner_channels, channels, bias=bias)
        self.source = source
        self.attention = EdgeAttention(**options)
        self.sink = nn.Parameter(torch.zeros(heads)) if sinks else None
        hops, teleport = self.attention.hops, self.attention.teleport
        check_diffusion(hops, teleport, learn_teleport)
        check_recompute(recompute, hops)
        self.recompute = recompute
        self.teleport_logit = teleport_parameter(teleport, heads) if learn_teleport else None

    _options_of = EdgeAttention.__init__,

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        for linear in (self.lin_query, self.lin_key, self.lin_value, self.lin_out):
            linear.reset_parameters()
        if self.source is not None:
            self.source.reset_parameters()
        if self.sink is not None:
            nn.init.zeros_(self.sink)
        reset_teleport(self.teleport_logit, self.attention.teleport)

    def teleport(self) -> Tensor | None:
        """Return the learned teleport probability of each head, ``[heads]``, or None if it is not
        learned. It is the fraction of the original values that is mixed in after each
        message-passing step."""
        return None if self.teleport_logit is None else self.teleport_logit.sigmoid()

    @recomputed
    def forward(
        self,
        x: Tensor,
        ptr: Tensor,
        *,
        placement: Placement = LOCAL,
        source: GraphSource | Pattern | str | None = None,
        graph: BipartiteGraph | PairMask | None = None,
        edge_bias: Tensor | None = None,
        memory: Tensor | None = None,
        memory_ptr: Tensor | None = None,
        generator: torch.Generator | None = None,
        rotation: Tensor | None = None,
        return_graph: bool = False,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, BipartiteGraph | PairMask | tuple[Tensor, Tensor]]:
        """Return the output of attention among the tokens of each sequence.

        Args:
            x (Tensor): Tokens of all sequences, one after the other, ``[num_tokens, channels]``.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``, as in a PyG
                ``Batch``.
            placement (Placement, optional): Where keys of other tokens lie: in a cache, of which
                ``x`` has the next tokens (:meth:`graphattn.decoding.KeyValueCache.step`), or in
                other processes (:func:`graphattn.distributed.sequence_parallel` passes it).
            source (GraphSource, optional): Replaces the source of the layer.
            graph (BipartiteGraph or PairMask, optional): Graph to attend along instead of a graph
                from the source. The segments of the graph are the sequences of ``ptr``; if each
                head has its own graph, there is one segment for each head and sequence. The source,
                if there is one, only provides logit terms.
            edge_bias (Tensor, optional): Added to logits, ``[num_edges]`` or ``[num_edges, heads]``
                in the order of ``graph.edge_index``; requires ``graph``. If each head has its own
                graph, the shape must be ``[num_edges]``.
            memory (Tensor, optional): Tokens that keys and values are computed from, ``[num_keys,
                channels]``; ``x`` if omitted. A pattern treats query i and key i as tokens at the
                same position.
            memory_ptr (Tensor, optional): Where the memory of each sequence begins, int64
                ``[num_sequences + 1]``; required with ``memory``.
            generator (torch.Generator, optional): Random generator of sources that draw edges;
                torch's default generator if omitted.
            rotation (Tensor, optional): Cosines and sines that rotate the queries and keys of each
                token by its position, ``[num_tokens, head_channels / 2, 2]``
                (:class:`RotaryPositions`). Sources get unrotated queries and keys, so the graphs of
                a source depend on content only.
            return_graph (bool): Also return the graph or pair mask. If each head has its own graph,
                the segments of the returned graph are the sequences of head 0, then of head 1, and
                so on.
            return_attention_weights (bool, optional): Also return ``(edge_index, alpha)``, whether
                the argument is True or False, as PyG's layers do. ``alpha`` is ``[num_edges,
                heads]``, or ``[num_edges, 1]`` if each head has its own graph.

        Returns:
            Tensor ``[num_tokens, channels]``; or a tuple of this tensor and, as requested, the
            graph and the pair of edges and weights, in this order.

        Raises:
            ValueError: There is neither a source nor a graph; or the source or graph does not fit
                the heads, the tokens or the sequences.
        """
        check_features(x, self.channels, self.lin_query)
        if generator is not None:
            check_generator(generator)
        if return_graph is not False:
            check_bool(return_graph=return_graph)
        if (needs_weights := return_attention_weights is not None):
            check_bool(return_attention_weights=return_attention_weights)
        if rotation is not None:
            check_rotation(rotation, x, self.head_channels)
            if memory is not None:
                raise ValueError("'rotation' must be None with 'memory', because the memory has no "
                                 "positions; omit 'rotation'")
        if edge_bias is not None:
            _check_bias(edge_bias, graph)
        if placement is not LOCAL:
            check_shard(placement)
        if memory is not None or memory_ptr is not None:
            self._check_memory(ptr, placement, memory, memory_ptr)
        source = self.source if source is None else check_source(source, self.heads)
        attended = x if memory is None else memory
        projected = self.lin_query(x), self.lin_key(attended), self.lin_value(attended)
        query, key, value = (tokens.unflatten(-1, (-1, self.head_channels)) for tokens in projected)
        if graph is None:
            graph = self._edges(source, query, key, ptr, memory_ptr, placement, generator)
        else:
            self._check_graph(graph, placement, (x, attended), (ptr, memory_ptr))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        terms = LogitTerms(edge_bias)
        if source is not None and isinstance(graph, BipartiteGraph):
            terms = add_terms(source, graph, terms)
        out, weights = self._attend(query, key, value, graph, terms, ptr, placement,
                                    needs_weights)
        out = self.lin_out(out.flatten(1))
        wanted = [graph] * return_graph + [weights] * needs_weights
        return (out, *wanted) if wanted else out

    def _edges(
        self, source: GraphSource | None, query: Tensor, key: Tensor, ptr: Tensor,
        memory_ptr: Tensor | None, placement: Placement, generator: torch.Generator | None,
    ) -> BipartiteGraph | PairMask:
        if source is None:
            raise ValueError("'graph' must be given, because the layer was built without a "
                             "source; pass a BipartiteGraph, or build the layer with 'source'")
        others = {} if memory_ptr is None else {'key_ptr': memory_ptr}
        others |= {} if placement is LOCAL else {'placement': placement}
        if source.per_head and self.num_kv_heads < self.heads:
            key = repeat_heads(key, self.heads)
        graph = source(query, key, ptr, generator=generator, **others)
        check_returned(source, graph, query, ptr, has_all_rows=placement is LOCAL)
        return graph

    def _check_graph(self, graph: BipartiteGraph | PairMask, placement: Placement,
                     tokens: tuple[Tensor, Tensor], ptrs: tuple[Tensor, Tensor | None]) -> None:
        if placement is not LOCAL:
            placement.check_graph(graph, self.heads)
        elif isinstance(graph, BipartiteGraph):
            (x, attended), (ptr, memory_ptr) = tokens, ptrs
            check_pointer('ptr', ptr, x.device)
            _check_sequences('query_ptr', graph.segments.query_ptr, ptr, self.heads, x.size(0))
            _check_sequences('key_ptr', graph.segments.key_ptr,
                             ptr if memory_ptr is None else memory_ptr, self.heads,
                             attended.size(0))
        elif not isinstance(graph, PairMask):
            raise TypeError(f"'graph' must be a BipartiteGraph or a PairMask (got "
                            f"{type(graph).__name__})")

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph | PairMask,
        terms: LogitTerms, ptr: Tensor, placement: Placement, needs_weights: bool,
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        attention, is_soft = self.attention, isinstance(graph, PairMask)
        if needs_weights and (is_soft or placement is not LOCAL):
            raise ValueError("'return_attention_weights' must be omitted for soft masks, which "
                             "have no edges, and with a 'placement'")
        teleport = attention.teleport if self.teleport_logit is None else self.teleport()
        options = dict(hops=attention.hops, teleport=teleport,
                       dropout_p=attention.dropout if attention.training else 0.)
        if is_soft:
            return functional.pair_attention(
                query, key, value, ptr, graph, scale=attention.scale, softcap=attention.softcap,
                sink=self.sink, **options), None
        num_tokens = query.size(0)
        num_keys = key.size(0) if placement is LOCAL else placement.num_tokens
        sizes = graph.num_queries, graph.num_keys
        owners = None if sizes == (num_tokens, num_keys) else self.heads
        if owners is not None and sizes != (owners * num_tokens, owners * num_keys):
            raise ValueError(f"'graph' must have {num_tokens} queries and keys, or "
                             f"{owners * num_tokens} if each head has its own graph (got "
                             f"{graph.num_queries} queries and {graph.num_keys} keys)")
        if placement is not LOCAL:
            of_layer = placement.place(attention, key, graph, owners, **options)
        else:
            of_layer = LOCAL if owners is None else Placement(owners)
        out = attention(query, key, value, graph, edge_bias=terms.bias, edge_gate=terms.gate,
                        sink=self.sink, teleport=teleport, placement=of_layer,
                        return_attention_weights=needs_weights or None)
        if placement is not LOCAL:
            placement.attended(attention)
        return out if needs_weights else (out, None)

    def _check_memory(self, ptr: Tensor, placement: Placement, memory: Tensor | None,
                      memory_ptr: Tensor | None) -> None:
        if (memory is None) != (memory_ptr is None):
            missing, given = (('memory_ptr', 'memory') if memory_ptr is None else
                              ('memory', 'memory_ptr'))
            raise ValueError(f"'{missing}' must be given with '{given}' (got None)")
        if placement is not LOCAL:
            raise ValueError("'memory' must be None with a 'placement', whose tokens attend to one "
                             "another")
        check_features(memory, self.channels, self.lin_key, 'memory')
        check_ptr('memory_ptr', memory_ptr, memory.size(0), memory.device)
        check_pointer('ptr', ptr, memory.device)
        check_same_sequences(ptr, memory_ptr, 'memory_ptr')

    def extra_repr(self) -> str:
        shared = f', num_kv_heads={self.num_kv_heads}' if self.num_kv_heads < self.heads else ''
        return f'{self.channels}, heads={self.heads}{shared}, head_channels={self.head_channels}'


def check_source(source: GraphSource | Pattern | str, heads: int) -> GraphSource:
    """Return ``source``, a pattern or its expression as a GraphSource, for this number of heads."""
    source = as_source(source)
    if source.heads not in (None, heads):
        raise ValueError(f"'source' must be a source for {heads} heads, like the layer (got a "
                         f"source for {source.heads} heads)")
    return source


def sources_of_layers(
    source: GraphSource | Pattern | str | list[GraphSource | Pattern | str] | None, heads: int,
    num_layers: int, causal: bool = False,
) -> list[GraphSource | None]:
    """Return a checked source for each layer, or a list of one source, which all layers have."""
    is_one = not isinstance(source, list | tuple)
    sources = [source] if is_one else source
    if not is_one and len(sources) != num_layers:
        raise ValueError(f"'source' must be one source, or a list of {num_layers} sources, one for "
                         f"each layer (got {len(sources)} sources)")
    if source is not None and any(one is None for one in sources):
        raise ValueError("'source' must not contain None; use 'Full()' for a layer with all edges")
    checked = [None if one is None else check_source(one, heads) for one in sources]
    return [one.causal() if causal and one is not None else one for one in checked]


def _check_bias(bias: Tensor, graph: BipartiteGraph | PairMask | None) -> None:
    if not isinstance(graph, BipartiteGraph):
        raise ValueError("'edge_bias' must be None without 'graph', because the bias belongs to "
                         "the edges of this graph; pass 'graph' too")
    check_floating(edge_bias=bias)
    if bias.dim() not in (1, 2) or bias.size(0) != graph.num_edges:
        raise ValueError(f"'edge_bias' must have shape [num_edges] or [num_edges, heads] with "
                         f"{graph.num_edges} edges (got shape {tuple(bias.shape)})")


def _check_sequences(name: str, own: Tensor, ptr: Tensor, heads: int, num_tokens: int) -> None:
    # Segments are the sequences of ptr, once for all heads or once for each head.
    if is_traced(ptr):
        return
    own, ptr = host_copy(own), host_copy(ptr)
    fitting = [times for times in (1, heads) if times * num_tokens == int(own[-1])]
    if not fitting:
        return  # sizes are compared later
    if not any(torch.equal(own, fold_ptr(ptr, times, num_tokens)) for times in fitting):
        of_heads = f', once for each of {heads} heads' * (fitting[-1] > 1)
        raise ValueError(f"'graph' must have the sequences of 'ptr' as segments{of_heads} (got "
                         f"{name} {own.tolist()} and ptr {ptr.tolist()}); build the graph with "
                         f"query_ptr=ptr")


def check_diffusion(hops: int | float, teleport: float | Sequence[float],
                    learn_teleport: bool) -> None:
    check_bool(learn_teleport=learn_teleport)
    check_hops(hops)
    check_teleport(teleport, hops)
    if learn_teleport and (isinstance(teleport, Sequence) or not 0. < teleport < 1.):
        raise ValueError(f"'teleport' must be a number above 0 and below 1 with "
                         f"learn_teleport=True, because learning starts from this number (got "
                         f"{teleport})")


def teleport_parameter(teleport: float, heads: int, device: torch.device | None = None,
                       dtype: torch.dtype | None = None) -> nn.Parameter:
    """Return the logit of a learned teleport in each head, ``[heads]``, initially of
    ``teleport``."""
    parameter = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
    reset_teleport(parameter, teleport)
    return parameter


def reset_teleport(parameter: nn.Parameter | None, teleport: float) -> None:
    if parameter is not None:
        nn.init.constant_(parameter, math.log(teleport) - math.log1p(-teleport))
