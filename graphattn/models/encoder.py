"""A transformer encoder over ragged batches of token ids."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from graphattn.graph import BipartiteGraph
from graphattn.layers import EncoderLayer
from graphattn.sources import GraphSource


class Encoder(nn.Module):
    """Token and position embeddings and a stack of :class:`EncoderLayer`.

    Args:
        source (GraphSource): Where the edges come from. Every layer gets a copy of its own, with
            parameters drawn anew.
        num_tokens (int): Size of the vocabulary.
        max_length (int): Length of the longest sequence.
        channels (int): Size of each token.
        heads (int): Number of attention heads.
        num_layers (int): Number of layers.
        head_channels (int, optional): Size of a head, ``channels / heads`` if omitted.
        hidden_channels (int, optional): Hidden size of the feed-forward networks,
            ``4 * channels`` if omitted.
        dropout (float): Dropout on embeddings, after attention and in feed-forward networks.
        attention_dropout (float): Dropout on the attention weights.
        norm_first (bool): Pre-norm with a final norm, or post-norm as BERT.
        backend (str): Kernel, see :func:`graphattn.functional.edge_attention`.

    Example:
        >>> import torch
        >>> from graphattn.models import Encoder
        >>> from graphattn.patterns import SlidingWindow
        >>> from graphattn.sources import PatternSource
        >>> encoder = Encoder(PatternSource(SlidingWindow(2)), num_tokens=100, max_length=16,
        ...                   channels=32, heads=4, num_layers=2)
        >>> tokens, ptr = torch.randint(100, (20,)), torch.tensor([0, 4, 20])  # two sequences
        >>> x, graphs = encoder(tokens, ptr, return_graphs=True)
        >>> x.shape, graphs[0]
        (torch.Size([20, 32]), BipartiteGraph(num_queries=20, num_keys=20, num_edges=88, \
num_blocks=2, density=32.4%))
    """

    def __init__(
        self,
        source: GraphSource,
        *,
        num_tokens: int,
        max_length: int,
        channels: int,
        heads: int,
        num_layers: int,
        head_channels: int | None = None,
        hidden_channels: int | None = None,
        dropout: float = 0.,
        attention_dropout: float = 0.,
        norm_first: bool = True,
        backend: str = 'auto',
    ):
        super().__init__()
        self.channels, self.heads = channels, heads
        self.token_embedding = nn.Embedding(num_tokens, channels)
        self.position_embedding = nn.Embedding(max_length, channels)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(channels, heads, copy.deepcopy(source), head_channels=head_channels,
                         hidden_channels=hidden_channels, dropout=dropout,
                         attention_dropout=attention_dropout, norm_first=norm_first,
                         backend=backend)
            for _ in range(num_layers))
        self.norm = nn.LayerNorm(channels) if norm_first else nn.Identity()
        for layer in self.layers:
            layer.attention.source.reset_parameters()
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph]]:
        """Encodes every token in the light of its sequence.

        Args:
            tokens (Tensor): Ids of all sequences, one after the other, int64 ``[num_tokens]``.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
            generator (torch.Generator, optional): For sources that draw edges; torch's default
                generator if omitted.
            return_graphs (bool): Also return the graph of each layer.

        Returns:
            Tensor ``[num_tokens, channels]``, or a pair with the list of graphs.

        Raises:
            ValueError: An id is outside the vocabulary, a sequence is longer than
                ``max_length``, or ``ptr`` does not mark the sequences of ``tokens``.
        """
        x = self.dropout(self.token_embedding(self._check_tokens(tokens))
                         + self.position_embedding(self._positions(tokens, ptr)))
        graphs = []
        for layer in self.layers:
            x, graph = layer(x, ptr, generator=generator, return_graph=True)
            graphs.append(graph)
        x = self.norm(x)
        return (x, graphs) if return_graphs else x

    def _check_tokens(self, tokens: Tensor) -> Tensor:
        if tokens.dtype != torch.long or tokens.dim() != 1:
            raise ValueError(f"'tokens' must be int64 [num_tokens], all sequences one after the "
                             f"other (got {tokens.dtype} of shape {tuple(tokens.shape)})")
        num_ids = self.token_embedding.num_embeddings
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < num_ids:
            raise ValueError(f"'tokens' must be ids from 0 to {num_ids - 1} (got "
                             f"{int(tokens.min())} to {int(tokens.max())})")
        return tokens

    def _positions(self, tokens: Tensor, ptr: Tensor) -> Tensor:
        length = ptr.diff()
        if int(ptr[0]) != 0 or int(ptr[-1]) != tokens.numel() or bool((length < 0).any()):
            raise ValueError(f"'ptr' must rise from 0 to the {tokens.numel()} tokens (got "
                             f"{ptr.tolist()})")
        max_length = self.position_embedding.num_embeddings
        if length.numel() and int(length.max()) > max_length:
            raise ValueError(f"'ptr' marks a sequence of {int(length.max())} tokens, but the model "
                             f"was built for max_length={max_length}")
        start = ptr[:-1].repeat_interleave(length, output_size=tokens.numel())
        return torch.arange(tokens.numel(), device=tokens.device) - start
