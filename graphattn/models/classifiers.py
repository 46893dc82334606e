"""Classification of whole sequences and of single tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn import MeanAggregation

from graphattn.graph import BipartiteGraph
from graphattn.models.encoder import Encoder


class SequenceClassifier(nn.Module):
    """Pools the encoded tokens of each sequence and classifies it.

    Args:
        encoder (Encoder): Encodes the tokens.
        num_classes (int): Number of classes.
        pooling (str): ``'mean'`` over the sequence's own tokens, or its ``'first'`` token.
        hidden_channels (int, optional): Puts a hidden ReLU layer of that size before the logits.
        dropout (float): Dropout on the pooled features.
    """

    def __init__(self, encoder: Encoder, num_classes: int, *,
                 pooling: Literal['mean', 'first'] = 'mean', hidden_channels: int | None = None,
                 dropout: float = 0.):
        super().__init__()
        if pooling not in ('mean', 'first'):
            raise ValueError(f"'pooling' must be 'mean' or 'first' (got {pooling!r})")
        self.encoder = encoder
        self.pooling = pooling
        self.mean = MeanAggregation()
        self.head = _head(encoder.channels, num_classes, hidden_channels, dropout)

    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph]]:
        """Logits ``[num_sequences, num_classes]``; arguments as :meth:`Encoder.forward`.

        Raises:
            ValueError: As :meth:`Encoder.forward`, or a sequence is empty.
        """
        if bool((ptr.diff() == 0).any()):
            raise ValueError(f"'ptr' marks an empty sequence, which has no class (got "
                             f"{ptr.tolist()})")
        x, graphs = self.encoder(tokens, ptr, generator=generator, return_graphs=True)
        pooled = self.mean(x, ptr=ptr) if self.pooling == 'mean' else x[ptr[:-1]]
        logits = self.head(pooled)
        return (logits, graphs) if return_graphs else logits


class TokenClassifier(nn.Module):
    """Classifies every token.

    Args:
        encoder (Encoder): Encodes the tokens.
        num_classes (int): Number of classes.
        hidden_channels (int, optional): Puts a hidden ReLU layer of that size before the logits.
        dropout (float): Dropout on the token's features.
    """

    def __init__(self, encoder: Encoder, num_classes: int, *,
                 hidden_channels: int | None = None, dropout: float = 0.):
        super().__init__()
        self.encoder = encoder
        self.head = _head(encoder.channels, num_classes, hidden_channels, dropout)

    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph]]:
        """Logits ``[num_tokens, num_classes]``; arguments as :meth:`Encoder.forward`."""
        x, graphs = self.encoder(tokens, ptr, generator=generator, return_graphs=True)
        logits = self.head(x)
        return (logits, graphs) if return_graphs else logits


def _head(channels: int, num_classes: int, hidden_channels: int | None,
          dropout: float) -> nn.Sequential:
    hidden = [] if hidden_channels is None else [nn.Linear(channels, hidden_channels), nn.ReLU()]
    return nn.Sequential(nn.Dropout(dropout), *hidden,
                         nn.Linear(hidden_channels or channels, num_classes))
