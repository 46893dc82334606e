"""PyG's GPSConv with attention along graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GPSConv, MessagePassing

from graphattn._checks import check_bool, check_dropout, check_features, check_kind, check_sides
from graphattn._explained import Explained
from graphattn.graphs.from_pyg import Edges
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.graphs.pyg_data import ptr_of_batch
from graphattn.layers.graph_attention import GraphAttention
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource


class GraphGPSConv(GPSConv, Explained):
    r"""A GPS layer whose global part is any attention of this library.

    .. math::
        x' = h + \mathrm{MLP}(h), \qquad h = \mathrm{norm}_1(x + \mathrm{conv}(x))
        + \mathrm{norm}_2(x + \mathrm{attention}(x))

    followed by :math:`\mathrm{norm}_3`. The base class :class:`torch_geometric.nn.GPSConv` offers
    two attentions over padded batches. Here the nodes of each graph attend to one another along the
    edges of a source, without padding. Without ``attention``, the layer has the arguments and the
    values of the base class, and loads its ``state_dict``.

    Args:
        channels (int): Size of each node.
        conv (MessagePassing, optional): The local part.
        heads (int): Number of attention heads.
        dropout (float): Dropout after each part and inside the MLP.
        act, act_kwargs, norm, norm_kwargs: As in PyG.
        attn_type (str, optional): ``'multihead'``; or ``None`` for a layer without a global part.
        attn_kwargs (dict, optional): Further arguments of
            :class:`graphattn.layers.GraphAttention`, such as ``dropout`` or ``source``, which is
            full attention if omitted.
        attention (nn.Module, optional): The global part, instead of ``heads``, ``attn_type`` and
            ``attn_kwargs``: a :class:`graphattn.layers.GraphAttention`, or a module that is called
            like it and has ``channels``, ``heads`` and ``reset_parameters()``.

    Raises:
        TypeError, ValueError: An argument is of the wrong type, or ``attention`` has other
            ``channels`` than the layer.

    Source: Rampášek et al., "Recipe for a General, Powerful, Scalable Graph Transformer" (2022),
    Sec. 3.

    Example:
        >>> import torch
        >>> from graphattn.layers import GraphGPSConv, GraphTransformerConv
        >>> from graphattn.sources import PatternSource
        >>> layer = GraphGPSConv(8, GraphTransformerConv(8, 4, heads=2), heads=2)
        >>> x, batch = torch.randn(9, 8), torch.tensor([0] * 4 + [1] * 5)
        >>> edge_index = torch.tensor([[1, 2, 5, 8], [2, 1, 8, 5]])
        >>> exphormer = PatternSource('exphormer') | edge_index
        >>> layer(x, edge_index, batch, source=exphormer).shape
        torch.Size([9, 8])
    """

    def __init__(self, channels: int, conv: MessagePassing | None, heads: int = 1,
                 dropout: float = 0., act: str | Callable = 'relu',
                 act_kwargs: dict[str, Any] | None = None,
                 norm: str | Callable | None = 'batch_norm',
                 norm_kwargs: dict[str, Any] | None = None, attn_type: str | None = 'multihead',
                 attn_kwargs: dict[str, Any] | None = None, *,
                 attention: nn.Module | None = None):
        if isinstance(heads, nn.Module):
            raise TypeError(f"'heads' must be an int (got {type(heads).__name__}); pass a module "
                            f"as 'attention'")
        check_sides(channels=channels, heads=heads)
        check_dropout(dropout=dropout)
        if conv is not None:
            check_kind('conv', conv, nn.Module)
        for name, kind in (('act', act), ('norm', norm)):
            if not (isinstance(kind, str) or callable(kind) or name == 'norm' and kind is None):
                raise TypeError(f"'{name}' must be a str or a callable (got "
                                f"{type(kind).__name__})")
        for name, options in (('act_kwargs', act_kwargs), ('norm_kwargs', norm_kwargs),
                              ('attn_kwargs', attn_kwargs)):
            if options is not None:
                check_kind(name, options, dict)
        if attention is not None:
            _check_attention(attention, channels, heads, attn_kwargs)
            heads, attn_type = getattr(attention, 'heads', 1), type(attention).__name__
        elif attn_type == 'multihead':
            attention = GraphAttention(channels, heads, **{'source': 'Full()',
                                                           **(attn_kwargs or {})})
        elif attn_type is not None:
            raise ValueError(f"'attn_type' must be 'multihead' or None (got {attn_type!r}); use "
                             f"torch_geometric.nn.GPSConv for its other types")
        elif conv is None:
            raise ValueError("'attn_type' must be 'multihead' without 'conv', because the layer "
                             "would be empty (got None)")
        super().__init__(channels, conv, 1, dropout, act, act_kwargs, norm, norm_kwargs)
        self.heads, self.attn, self.attn_type = heads, attention, attn_type
        for part in () if attention is None else attention.modules():
            if isinstance(part, MessagePassing):
                part.explain = False  # explainers weigh only the edges of conv
        if attention is None:  # DistributedDataParallel refuses parameters without a gradient
            self.norm2 = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if isinstance(self.attn, GraphAttention):  # PyG's layer has torch's attention
            own = f'{prefix}attn.'
            for kind in 'weight', 'bias':
                joint = state_dict.pop(f'{own}in_proj_{kind}', None)
                parts = () if joint is None else joint.chunk(3)
                state_dict |= {f'{own}lin_{name}.{kind}': part
                               for name, part in zip(('query', 'key', 'value'), parts)}
                if f'{own}out_proj.{kind}' in state_dict:
                    state_dict[f'{own}lin_out.{kind}'] = state_dict.pop(f'{own}out_proj.{kind}')
        super()._load_from_state_dict(state_dict, prefix, *args)

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        for part in (self.conv, self.attn, self.norm1, self.norm2, self.norm3, *self.mlp):
            if hasattr(part, 'reset_parameters'):
                part.reset_parameters()

    def forward(self, x: Tensor, edge_index: Edges, batch: Tensor | None = None, *,
                source: GraphSource | Pattern | str | None = None,
                graph: BipartiteGraph | PairMask | None = None, edge_bias: Tensor | None = None,
                return_graph: bool = False, return_attention_weights: bool | None = None,
                **kwargs: Any) -> Tensor | tuple:
        """Return the nodes after this layer.

        Args:
            x (Tensor): ``[num_nodes, channels]``.
            edge_index: Edges for ``conv``.
            batch (Tensor, optional): Index of the graph that each node belongs to, int64
                ``[num_nodes]``, ascending, as in a PyG ``Batch``. If omitted, all nodes belong to
                one graph.
            source (GraphSource, Pattern or str, optional): Replaces the source of ``attention``.
            graph (BipartiteGraph or PairMask, optional): Graph that ``attention`` uses instead of a
                graph from its source. The segments of this graph are the graphs of ``batch``.
            edge_bias (Tensor, optional): Added to the logits of ``attention``, ``[num_edges]`` or
                ``[num_edges, heads]`` in the order of ``graph.edge_index``; requires ``graph``.
            return_graph (bool): Also return the graph of ``attention``.
            return_attention_weights (bool, optional): Also return ``(edge_index, alpha)`` of
                ``attention``, whether the argument is True or False, see
                :class:`graphattn.layers.GraphAttention`. For the weights of ``conv``, call
                ``conv``.
            **kwargs: Further arguments of ``conv``.

        Returns:
            Tensor ``[num_nodes, channels]``; or a tuple of this tensor and, as requested, the graph
            of ``attention``, which is ``None`` without ``attention``, and the pair of edges and
            weights, in this order.

        Raises:
            TypeError, ValueError: ``conv`` or ``attention`` refuses an argument, or ``batch`` does
                not ascend.
        """
        check_features(x, self.channels, self.mlp[0])
        batch = x.new_zeros(len(x), dtype=torch.long) if batch is None else batch
        check_bool(return_graph=return_graph)
        ptr, parts = ptr_of_batch(batch, len(x)), []
        # Other attention modules need not support these arguments.
        along = {'graph': graph, 'edge_bias': edge_bias,
                 'return_attention_weights': return_attention_weights}
        along = {name: value for name, value in along.items() if value is not None}
        wanted = [graph]
        if self.attn is None and along:
            raise ValueError(f"'{next(iter(along))}' must be omitted for a layer without "
                             f"attention; build the layer with 'attention' to use this argument")
        if self.conv is not None:
            parts.append((self.conv(x, edge_index, **kwargs), self.norm1))
        if self.attn is not None:
            attended, *wanted = self.attn(x, ptr, source=source, return_graph=True, **along)
            parts.append((attended, self.norm2))
        out = sum(self._normalize(x + F.dropout(part, self.dropout, self.training), norm, batch)
                  for part, norm in parts)
        out = self._normalize(out + self.mlp(out), self.norm3, batch)
        wanted = wanted if return_graph else wanted[1:]
        return (out, *wanted) if wanted else out

    def _normalize(self, x: Tensor, norm: nn.Module | None, batch: Tensor) -> Tensor:
        if norm is None:
            return x
        return norm(x, batch=batch) if self.norm_with_batch else norm(x)


def _check_attention(attention: nn.Module, channels: int, heads: int,
                     attn_kwargs: dict[str, Any] | None) -> None:
    check_kind('attention', attention, nn.Module)
    if not hasattr(attention, 'channels'):
        raise TypeError(f"'attention' must be a GraphAttention, or a module that is called like "
                        f"GraphAttention (got {type(attention).__name__}); GraphAttention("
                        f"{channels}, heads, 'Full()') is full attention")
    if attention.channels != channels:
        raise ValueError(f"'attention' must have {channels} channels, like the layer (got "
                         f"{attention.channels})")
    for name, value, known in (('heads', heads, (1, getattr(attention, 'heads', 1))),
                               ('attn_kwargs', attn_kwargs, (None,))):
        if value not in known:
            raise ValueError(f"'{name}' must be omitted with 'attention', which has its own (got "
                             f"{value})")
