"""A transformer encoder layer around graph attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphattn._checks import (
    check_bool,
    check_choice,
    check_dropout,
    check_features,
    check_kind,
    check_number,
    check_sides,
)
from graphattn._explained import Explained, parameters_of
from graphattn.functional.drive import LOCAL, Placement
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers.graph_attention import GraphAttention
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource

# Names as in Hugging Face; 'gelu_new' is the tanh approximation.
ACTIVATIONS = {'gelu': nn.GELU, 'gelu_new': partial(nn.GELU, 'tanh'), 'relu': nn.ReLU,
               'silu': nn.SiLU}


class EncoderLayer(nn.Module, Explained):
    r"""Attention and a feed-forward network, each with a residual and a layer norm.

    .. math::
        \text{pre-norm: } x + f(\mathrm{norm}(x)), \qquad
        \text{post-norm: } \mathrm{norm}(x + f(x))

    Args:
        channels (int): Size of each token.
        heads (int): Number of attention heads.
        source (GraphSource, Pattern or str, optional): Source of the edges: a graph source, a
            pattern, or the expression of a pattern. If omitted, every call needs a source or a
            graph.
        attention (nn.Module, optional): Module to use instead of :class:`GraphAttention`. The
            module must have ``channels``, ``heads`` and ``reset_parameters()``, and must be called
            like :class:`GraphAttention`; it may return ``None`` instead of a graph. With
            ``attention``, the argument ``source`` and the other options of graph attention must be
            omitted.
        hidden_channels (int, optional): Hidden size of the feed-forward network,
            ``4 * channels`` if omitted.
        dropout (float): Probability of zeroing a value after the attention and after the
            feed-forward network. Pre-norm layers also use dropout inside the feed-forward network.
        attention_dropout (float): Dropout on the attention weights.
        activation (str): Activation of the feed-forward network, one of :data:`ACTIVATIONS`.
        norm_first (bool): Pre-norm if set, else post-norm as in BERT.
        norm_eps (float): Added to the variance in layer norms.
        **options: Further options of :class:`GraphAttention`, such as ``head_channels``,
            ``num_kv_heads``, ``hops``, ``teleport``, ``backend`` or ``recompute``.

    Raises:
        ValueError: ``attention`` has other ``channels`` or ``heads`` than the layer, or is combined
            with an option of graph attention.
    """

    def __init__(self, channels: int, heads: int,
                 source: GraphSource | Pattern | str | None = None, *,
                 attention: nn.Module | None = None, hidden_channels: int | None = None,
                 dropout: float = 0., attention_dropout: float = 0., activation: str = 'gelu',
                 norm_first: bool = True, norm_eps: float = 1e-5, **options: Any):
        super().__init__()
        check_sides(channels=channels)
        check_dropout(dropout=dropout, attention_dropout=attention_dropout)
        check_bool(norm_first=norm_first)
        check_number('norm_eps', norm_eps, 'finite and not negative')
        hidden_channels = 4 * channels if hidden_channels is None else hidden_channels
        check_sides(hidden_channels=hidden_channels)
        self.norm_first = norm_first
        self.activation = activation
        if attention is None:
            attention = GraphAttention(channels, heads, source, dropout=attention_dropout,
                                       **options)
        else:
            given = dict(options, source=source, dropout=attention_dropout)
            check_attention(attention, channels, heads, given)
        self.attention = attention
        # BERT, which is post-norm, has no dropout inside the feed-forward network.
        hidden_dropout = dropout if norm_first else 0.
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, hidden_channels), activation_of(activation),
            nn.Dropout(hidden_dropout),
            nn.Linear(hidden_channels, channels), nn.Dropout(dropout))
        self.attention_norm = nn.LayerNorm(channels, eps=norm_eps)
        self.feed_forward_norm = nn.LayerNorm(channels, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    _options_of = GraphAttention,

    def forward(
        self,
        x: Tensor,
        ptr: Tensor,
        *,
        placement: Placement = LOCAL,
        source: GraphSource | Pattern | str | None = None,
        graph: BipartiteGraph | PairMask | None = None,
        generator: torch.Generator | None = None,
        rotation: Tensor | None = None,
        return_graph: bool = False,
    ) -> Tensor | tuple[Tensor, BipartiteGraph | PairMask]:
        """Return the tokens after this layer. The arguments and the results are those of
        :meth:`GraphAttention.forward`."""
        check_features(x, self.attention.channels, self.attention_norm)
        check_bool(return_graph=return_graph)
        # Other attention modules need not support rotations and placements.
        given = {} if rotation is None else {'rotation': rotation}
        given |= {} if placement is LOCAL else {'placement': placement}
        attended, graph = self.attention(self.attention_norm(x) if self.norm_first else x, ptr,
                                         source=source, graph=graph, generator=generator,
                                         return_graph=True, **given)
        x = x + self.dropout(attended)
        if self.norm_first:
            x = x + self.feed_forward(self.feed_forward_norm(x))
        else:
            x = self.attention_norm(x)
            x = self.feed_forward_norm(x + self.feed_forward(x))
        return (x, graph) if return_graph else x


def activation_of(name: str) -> nn.Module:
    check_choice('activation', name, ACTIVATIONS)
    return ACTIVATIONS[name]()


def check_attention(attention: nn.Module, channels: int, heads: int,
                    options: dict[str, object]) -> None:
    """Raise unless ``attention`` can replace graph attention, whose ``options`` must be
    defaults."""
    check_kind('attention', attention, nn.Module)
    for name, expected in (('channels', channels), ('heads', heads)):
        size = getattr(attention, name, None)
        if size != expected:
            raise ValueError(f"'attention' must have {expected} {name}, like the layer (got "
                             f"{size})")
    unset = parameters_of(GraphAttention)
    for name, value in options.items():
        if value != unset[name].default:
            name = 'attention_dropout' if name == 'dropout' else name
            raise ValueError(f"'{name}' must be omitted if 'attention' is given (got {value!r}); "
                             f"pass '{name}' to the constructor of the module 'attention' instead")
