"""Multi-head attention whose heads get their edges from a source."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphattn.graph import BipartiteGraph
from graphattn.layers.edge_attention import EdgeAttention
from graphattn.layers.folding import fold_heads, unfold_heads
from graphattn.sources import GraphSource


class GraphAttention(nn.Module):
    r"""Projections, a graph source, edge-softmax attention, and the output projection.

    .. math::
        \mathrm{Attn}(X) = \big\Vert_h \mathrm{EdgeAttention}(X W_h^Q, X W_h^K, X W_h^V, G_h) \,
        W^O, \qquad G = \mathrm{source}(X W^Q, X W^K)

    Args:
        channels (int): Size of each token, in and out.
        heads (int): Number of attention heads.
        source (GraphSource): Where the edges come from.
        head_channels (int, optional): Size of a head, ``channels / heads`` if omitted.
        dropout (float): Dropout on the attention weights.
        bias (bool): Whether the projections have one.
        backend (str): Kernel, see :func:`graphattn.functional.edge_attention`.

    Raises:
        ValueError: ``heads`` does not divide ``channels`` and ``head_channels`` is omitted.

    Example:
        >>> import torch
        >>> from graphattn.layers import GraphAttention
        >>> from graphattn.sources import BlockModelSource
        >>> attention = GraphAttention(32, 4, BlockModelSource(heads=4, head_channels=8))
        >>> tokens, ptr = torch.randn(50, 32), torch.tensor([0, 20, 50])  # two sequences
        >>> attention(tokens, ptr).shape
        torch.Size([50, 32])
    """

    def __init__(self, channels: int, heads: int, source: GraphSource, *,
                 head_channels: int | None = None, dropout: float = 0., bias: bool = True,
                 backend: str = 'auto'):
        super().__init__()
        if head_channels is None and channels % heads != 0:
            raise ValueError(f"'channels' must be a multiple of 'heads' (got {channels} and "
                             f"{heads}); or give 'head_channels'")
        self.channels = channels
        self.heads = heads
        self.head_channels = channels // heads if head_channels is None else head_channels
        inner_channels = self.heads * self.head_channels
        self.lin_query = nn.Linear(channels, inner_channels, bias=bias)
        self.lin_key = nn.Linear(channels, inner_channels, bias=bias)
        self.lin_value = nn.Linear(channels, inner_channels, bias=bias)
        self.lin_out = nn.Linear(inner_channels, channels, bias=bias)
        self.source = source
        self.attention = EdgeAttention(dropout=dropout, backend=backend)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for linear in (self.lin_query, self.lin_key, self.lin_value, self.lin_out):
            linear.reset_parameters()
        self.source.reset_parameters()

    def forward(
        self,
        x: Tensor,
        ptr: Tensor,
        *,
        generator: torch.Generator | None = None,
        return_graph: bool = False,
    ) -> Tensor | tuple[Tensor, BipartiteGraph]:
        """Lets the tokens of each sequence attend to one another.

        Args:
            x (Tensor): Tokens of all sequences, one after the other, ``[num_tokens, channels]``.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``, as in a PyG
                ``Batch``.
            generator (torch.Generator, optional): For sources that draw edges; torch's default
                generator if omitted.
            return_graph (bool): Also return the graph that was attended along. If heads own a
                graph each, its blocks are the sequences of head 0, then those of head 1, ...

        Returns:
            Tensor ``[num_tokens, channels]``, or a pair with the graph.
        """
        query, key, value = (linear(x).unflatten(-1, (self.heads, self.head_channels))
                             for linear in (self.lin_query, self.lin_key, self.lin_value))
        graph = self.source(query, key, ptr, generator=generator)
        if self.source.per_head:
            query, key, value = fold_heads(query), fold_heads(key), fold_heads(value)
        out = self.attention(query, key, value, graph, **self.source.logit_terms(graph))
        if self.source.per_head:
            out = unfold_heads(out, self.heads)
        out = self.lin_out(out.flatten(1))
        return (out, graph) if return_graph else out

    def extra_repr(self) -> str:
        return f'{self.channels}, heads={self.heads}, head_channels={self.head_channels}'
