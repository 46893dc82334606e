"""A transformer encoder layer around graph attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphattn._checks import (
    check_bool,
    check_dropout,
    check_features,
    check_number,
    check_sides,
)
from graphattn.graph import BipartiteGraph
from graphattn.layers.graph_attention import GraphAttention
from graphattn.pair_mask import PairMask
from graphattn.shard import Shard
from graphattn.sources import GraphSource


class EncoderLayer(nn.Module):
    r"""Graph attention and a feed-forward network, each with a residual and a layer norm.

    .. math::
        \text{pre-norm: } x + f(\mathrm{norm}(x)), \qquad
        \text{post-norm: } \mathrm{norm}(x + f(x))

    Args:
        channels (int): Size of each token.
        heads (int): Number of attention heads.
        source (GraphSource, optional): Where the edges come from; if omitted, every call is given
            a source or a graph.
        head_channels (int, optional): Size of a head, ``channels / heads`` if omitted.
        hidden_channels (int, optional): Hidden size of the feed-forward network,
            ``4 * channels`` if omitted.
        dropout (float): Dropout after the attention and after the feed-forward network; pre-norm
            also inside of it.
        attention_dropout (float): Dropout on the attention weights.
        norm_first (bool): Pre-norm, or post-norm as BERT.
        norm_eps (float): Added to the variance in layer norms.
        hops, teleport, learn_teleport, recompute: As in :class:`GraphAttention`.
        backend (str): Kernel for graphs, see :func:`graphattn.functional.edge_attention`.
    """

    def __init__(self, channels: int, heads: int, source: GraphSource | None = None, *,
                 head_channels: int | None = None, hidden_channels: int | None = None,
                 dropout: float = 0., attention_dropout: float = 0., norm_first: bool = True,
                 norm_eps: float = 1e-5, hops: int | float = 1,
                 teleport: float | Sequence[float] = 0., learn_teleport: bool = False,
                 backend: str = 'auto', recompute: bool = False):
        super().__init__()
        check_sides(channels=channels)
        check_dropout(dropout=dropout, attention_dropout=attention_dropout)
        check_bool(norm_first=norm_first)
        check_number('norm_eps', norm_eps, 'finite and not negative')
        hidden_channels = 4 * channels if hidden_channels is None else hidden_channels
        check_sides(hidden_channels=hidden_channels)
        self.norm_first = norm_first
        self.attention = GraphAttention(channels, heads, source, head_channels=head_channels,
                                        dropout=attention_dropout, hops=hops,
                                        teleport=teleport, learn_teleport=learn_teleport,
                                        backend=backend, recompute=recompute)
        hidden_dropout = dropout if norm_first else 0.  # BERT drops nothing there
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, hidden_channels), nn.GELU(), nn.Dropout(hidden_dropout),
            nn.Linear(hidden_channels, channels), nn.Dropout(dropout))
        self.attention_norm = nn.LayerNorm(channels, eps=norm_eps)
        self.feed_forward_norm = nn.LayerNorm(channels, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        ptr: Tensor | Shard,
        *,
        source: GraphSource | None = None,
        graph: BipartiteGraph | PairMask | None = None,
        generator: torch.Generator | None = None,
        return_graph: bool = False,
    ) -> Tensor | tuple[Tensor, BipartiteGraph | PairMask]:
        """Arguments and results are those of :meth:`GraphAttention.forward`."""
        check_features(x, self.attention.channels, self.attention_norm.weight)
        check_bool(return_graph=return_graph)
        attended, graph = self.attention(self.attention_norm(x) if self.norm_first else x, ptr,
                                         source=source, graph=graph, generator=generator,
                                         return_graph=True)
        x = x + self.dropout(attended)
        if self.norm_first:
            x = x + self.feed_forward(self.feed_forward_norm(x))
        else:
            x = self.attention_norm(x)
            x = self.feed_forward_norm(x + self.feed_forward(x))
        return (x, graph) if return_graph else x
