"""Classification of whole sequences and of single tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn import MeanAggregation

from graphattn._checks import check_bool, check_choice, check_dropout, check_sides
from graphattn.graph import BipartiteGraph
from graphattn.models.encoder import Encoder, check_encoder
from graphattn.models.pooler import Pooler, check_not_empty
from graphattn.pair_mask import PairMask


class SequenceClassifier(nn.Module):
    """Pools the encoded tokens of each sequence and classifies it.

    Args:
        encoder (Encoder): Encodes the tokens.
        num_classes (int): Number of classes.
        pooling (str): ``'mean'`` over the sequence's own tokens, its ``'first'`` token, or BERT's
            ``'pooler'``, see :class:`Pooler`.
        hidden_channels (int, optional): Puts a hidden ReLU layer of that size before the logits.
        dropout (float): Dropout on the pooled features.
        pooler_dropout (float): Dropout on what enters the pooler. RoBERTa's head has both, BERT's
            only the other.

    Raises:
        ValueError: ``pooling`` is unknown, or ``pooler_dropout`` comes without the pooler.
    """

    def __init__(self, encoder: Encoder, num_classes: int, *,
                 pooling: Literal['mean', 'first', 'pooler'] = 'mean',
                 hidden_channels: int | None = None, dropout: float = 0.,
                 pooler_dropout: float = 0.):
        super().__init__()
        check_encoder(encoder)
        check_choice('pooling', pooling, ('mean', 'first', 'pooler'))
        check_dropout(pooler_dropout=pooler_dropout)
        if pooler_dropout and pooling != 'pooler':
            raise ValueError(f"'pooler_dropout' needs pooling='pooler' (got {pooler_dropout} with "
                             f"{pooling!r})")
        self.encoder = encoder
        self.num_classes = num_classes
        self.pooling = pooling
        self.mean = MeanAggregation()
        has_pooler = pooling == 'pooler'
        self.pooler = Pooler(encoder.channels, pooler_dropout) if has_pooler else None
        self.head = _head(encoder.channels, num_classes, hidden_channels, dropout)

    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        segments: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Logits ``[num_sequences, num_classes]``; arguments as :meth:`Encoder.forward`.

        Raises:
            ValueError: As :meth:`Encoder.forward`, or a sequence is empty.
        """
        check_bool(return_graphs=return_graphs)
        x, graphs = self.encoder(tokens, ptr, segments=segments, generator=generator,
                                 return_graphs=True)
        check_not_empty(ptr)
        logits = self.head(self._pool(x, ptr))
        return (logits, graphs) if return_graphs else logits

    def _pool(self, x: Tensor, ptr: Tensor) -> Tensor:
        if self.pooling == 'mean':
            return self.mean(x, ptr=ptr)
        return x[ptr[:-1]] if self.pooling == 'first' else self.pooler(x, ptr)


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
        check_encoder(encoder)
        self.encoder = encoder
        self.head = _head(encoder.channels, num_classes, hidden_channels, dropout)

    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        segments: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Logits ``[num_tokens, num_classes]``; arguments as :meth:`Encoder.forward`."""
        check_bool(return_graphs=return_graphs)
        x, graphs = self.encoder(tokens, ptr, segments=segments, generator=generator,
                                 return_graphs=True)
        logits = self.head(x)
        return (logits, graphs) if return_graphs else logits


def _head(channels: int, num_classes: int, hidden_channels: int | None,
          dropout: float) -> nn.Sequential:
    check_sides(num_classes=num_classes)
    if hidden_channels is not None:
        check_sides(hidden_channels=hidden_channels)
    check_dropout(dropout=dropout)
    hidden = [] if hidden_channels is None else [nn.Linear(channels, hidden_channels), nn.ReLU()]
    return nn.Sequential(nn.Dropout(dropout), *hidden,
                         nn.Linear(hidden_channels or channels, num_classes))
