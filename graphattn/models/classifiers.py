"""Heads on encoders that classify sequences, pairs, tokens and choices, or predict tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn import MeanAggregation, SumAggregation

from graphattn._checks import (
    check_bool,
    check_choice,
    check_dropout,
    check_features,
    check_ids,
    check_ptr,
    check_sides,
)
from graphattn._explained import Explained
from graphattn._tensors import host_copy, is_traced
from graphattn.functional.drive import LOCAL, Placement
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.models.encoder import Encoder, accepts_data, check_encoder, vocabulary_size


class SequenceClassifier(nn.Module, Explained):
    """Pool the encoded tokens of each sequence and classify it.

    Args:
        encoder (Encoder): Encodes the tokens.
        num_classes (int): Number of classes.
        pooling (str): Features of a sequence. ``'mean'`` is the mean of its tokens.
            ``'padded_mean'`` is the sum of its tokens divided by the maximum length of the encoder,
            as if the sequence were padded with zeros (Nyströmformer, SBM-Transformer). ``'first'``
            is its first token, and ``'pooler'`` is BERT's pooler, see :class:`Pooler`.
        hidden_channels (int or list of int, optional): Sizes of hidden ReLU layers before the
            logits.
        dropout (float): Dropout on the pooled features.
        pooler_dropout (float): Dropout on the input of the pooler. RoBERTa's head uses ``dropout``
            and ``pooler_dropout``; BERT's head uses only ``dropout``.

    Raises:
        ValueError: ``pooling`` is unknown, or ``pooler_dropout`` is given without the pooler.
    """

    sequences_per_example = 1
    features_per_channel = 1

    def __init__(self, encoder: Encoder, num_classes: int, *,
                 pooling: Literal['mean', 'padded_mean', 'first', 'pooler'] = 'mean',
                 hidden_channels: int | list[int] | None = None, dropout: float = 0.,
                 pooler_dropout: float = 0.):
        super().__init__()
        check_encoder(encoder)
        check_choice('pooling', pooling, ('mean', 'padded_mean', 'first', 'pooler'))
        check_dropout(pooler_dropout=pooler_dropout)
        if pooler_dropout and pooling != 'pooler':
            raise ValueError(f"'pooler_dropout' must be 0 with pooling={pooling!r} (got "
                             f"{pooler_dropout}); omit 'pooler_dropout', or pass pooling='pooler'")
        self.encoder = encoder
        self.num_classes = num_classes
        self.pooling = pooling
        self.mean, self.sum = MeanAggregation(), SumAggregation()
        has_pooler = pooling == 'pooler'
        self.pooler = Pooler(encoder.channels, pooler_dropout) if has_pooler else None
        self.head = _head(self.features_per_channel * encoder.channels, num_classes,
                          hidden_channels, dropout)

    @accepts_data
    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        segments: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Return logits ``[num_examples, num_classes]``. The arguments are those of
        :meth:`Encoder.forward`. With ``return_graphs``, return a pair of the logits and the list of
        graphs.

        Raises:
            ValueError: :meth:`Encoder.forward` raises it; or a sequence is empty, or a pair lacks
                its second sequence.
        """
        check_bool(return_graphs=return_graphs)
        x, graphs = self.encoder(tokens, ptr, segments=segments, generator=generator,
                                 return_graphs=True)
        check_not_empty(ptr)
        logits = self.head(self._features(self._pool(x, ptr)))
        return (logits, graphs) if return_graphs else logits

    def _features(self, pooled: Tensor) -> Tensor:
        return pooled

    def _pool(self, x: Tensor, ptr: Tensor) -> Tensor:
        if self.pooling == 'mean':
            return self.mean(x, ptr=ptr)
        if self.pooling == 'padded_mean':
            return self.sum(x, ptr=ptr) / self.encoder.position_embedding.num_embeddings
        return x[ptr[:-1]] if self.pooling == 'first' else self.pooler(x, ptr)


class PairClassifier(SequenceClassifier):
    r"""Classify pairs of sequences. Each sequence is encoded and pooled independently.

    .. math:: \mathrm{head}([x, y, x \odot y, x - y])

    Sequences 0 and 1 of a batch are a pair, sequences 2 and 3 are a pair, and so on. :math:`x` and
    :math:`y` are the pooled first and second sequence of a pair. Long Range Arena and Nyströmformer
    use this model for the task Retrieval.

    Args:
        encoder (Encoder): Encodes the tokens of both sequences.
        num_classes (int): Number of classes.
        **kwargs: Arguments of :class:`SequenceClassifier`. Nyströmformer's head has one hidden
            layer. Long Range Arena's head has two hidden layers, and the second is half as wide as
            the first.
    """

    sequences_per_example = 2
    features_per_channel = 4

    def __init__(self, encoder: Encoder, num_classes: int, **kwargs):
        super().__init__(encoder, num_classes, **kwargs)

    def _features(self, pooled: Tensor) -> Tensor:
        if pooled.size(0) % 2:
            raise ValueError(f"'ptr' must mark an even number of sequences, two for each pair (got "
                             f"{pooled.size(0)} sequences)")
        x, y = pooled[::2], pooled[1::2]
        return torch.cat([x, y, x * y, x - y], dim=1)


class TokenClassifier(nn.Module, Explained):
    """Classify every token.

    Args:
        encoder (Encoder): Encodes the tokens.
        num_classes (int): Number of classes.
        hidden_channels (int or list of int, optional): Sizes of hidden ReLU layers before the
            logits.
        dropout (float): Dropout on the encoded tokens.
    """

    def __init__(self, encoder: Encoder, num_classes: int, *,
                 hidden_channels: int | list[int] | None = None, dropout: float = 0.):
        super().__init__()
        check_encoder(encoder)
        self.encoder = encoder
        self.head = _head(encoder.channels, num_classes, hidden_channels, dropout)

    @accepts_data
    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        placement: Placement = LOCAL,
        segments: Tensor | None = None,
        graph: BipartiteGraph | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Return logits ``[num_tokens, num_classes]``. The arguments are those of
        :meth:`Encoder.forward`. With ``return_graphs``, return a pair of the logits and the list of
        graphs."""
        check_bool(return_graphs=return_graphs)
        x, graphs = self.encoder(tokens, ptr, placement=placement, segments=segments, graph=graph,
                                 generator=generator, return_graphs=True)
        logits = self.head(x)
        return (logits, graphs) if return_graphs else logits


class CausalLanguageModel(TokenClassifier):
    r"""Predict each token from the tokens before it.

    .. math:: p(t_{i+1} \mid t_1, ..., t_i) = \mathrm{softmax}(W x_i + b)

    Args:
        encoder (Encoder): Encodes the tokens. The encoder must be built with ``causal=True``.

    Raises:
        ValueError: The encoder is not causal.

    Example:
        >>> import torch
        >>> from graphattn.models import CausalLanguageModel, Encoder
        >>> from graphattn.patterns import Full
        >>> from graphattn.sources import PatternSource
        >>> encoder = Encoder(PatternSource(Full()), num_tokens=100, max_length=16, channels=32,
        ...                   heads=4, num_layers=2, causal=True)
        >>> tokens, ptr = torch.randint(100, (20,)), torch.tensor([0, 4, 20])  # two sequences
        >>> CausalLanguageModel(encoder)(tokens, ptr).shape
        torch.Size([20, 100])
    """

    def __init__(self, encoder: Encoder):
        num_tokens = vocabulary_size(encoder)
        if not getattr(encoder, 'causal', False):
            raise ValueError("'encoder' must be causal, because the model predicts the next token, "
                             "which a token must not attend to (got causal=False); build the "
                             "Encoder with causal=True")
        super().__init__(encoder, num_tokens)


class MultipleChoiceModel(nn.Module, Explained):
    r"""Compute a logit for each choice, :math:`\langle w, x \rangle + b`, from the features x of
    the choice. A softmax over the choices of a question turns logits into probabilities.

    One token represents each choice. If each choice has its own sequence, which also contains the
    question, as in SWAG, the first token of the sequence represents the choice. If a sequence lists
    all choices, each after a special token, as in Longformer's WikiHop, pass the indices of these
    special tokens as ``selected``.

    Args:
        encoder (Encoder): Encodes the tokens.
        pooling (str): Features of a choice. ``'first'`` is the encoded token that represents the
            choice; ``'pooler'`` is BERT's pooler of this token, see :class:`Pooler`.
        dropout (float): Dropout on the features of a choice.

    Raises:
        ValueError: ``pooling`` is unknown.

    Source: Devlin et al., BERT (2019), Sec. 4.4; Beltagy et al., "Longformer" (2020), App. D.

    Example:
        >>> import torch
        >>> from graphattn.models import Encoder, MultipleChoiceModel
        >>> encoder = Encoder('Full', num_tokens=100, max_length=16, channels=32, heads=4,
        ...                   num_layers=2)
        >>> tokens, ptr = torch.randint(100, (20,)), torch.tensor([0, 8, 20])  # two sequences
        >>> model = MultipleChoiceModel(encoder)
        >>> model(tokens, ptr).shape, model(tokens, ptr, selected=torch.tensor([2, 5, 9])).shape
        (torch.Size([2]), torch.Size([3]))
    """

    def __init__(self, encoder: Encoder, *, pooling: Literal['first', 'pooler'] = 'pooler',
                 dropout: float = 0.):
        super().__init__()
        check_encoder(encoder)
        check_choice('pooling', pooling, ('first', 'pooler'))
        check_dropout(dropout=dropout)
        self.encoder = encoder
        self.pooler = Pooler(encoder.channels) if pooling == 'pooler' else None
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(encoder.channels, 1))

    @accepts_data
    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        placement: Placement = LOCAL,
        segments: Tensor | None = None,
        selected: Tensor | None = None,
        graph: BipartiteGraph | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Return logits ``[num_choices]``. The arguments other than ``selected`` are those of
        :meth:`Encoder.forward`. With ``return_graphs``, return a pair of the logits and the list of
        graphs.

        Args:
            selected (Tensor, optional): Indices of the tokens that represent choices, int64
                ``[num_choices]``; the first token of each sequence if omitted.

        Raises:
            ValueError: :meth:`Encoder.forward` raises it; ``selected`` is out of range; or
                ``selected`` is omitted and a sequence is empty.
        """
        check_bool(return_graphs=return_graphs)
        if selected is None:
            check_local(placement)
        x, graphs = self.encoder(tokens, ptr, placement=placement, segments=segments, graph=graph,
                                 generator=generator, return_graphs=True)
        if selected is None:
            check_not_empty(ptr)
            selected = ptr[:-1]
        check_ids('selected', selected, x.size(0), x.device)
        choices = x[selected]
        if self.pooler is not None:
            choices = self.pooler(choices, torch.arange(len(choices) + 1, device=x.device))
        logits = self.head(choices).squeeze(1)
        return (logits, graphs) if return_graphs else logits


class Pooler(nn.Module, Explained):
    r"""Compute one vector for each sequence from its first token, ``[CLS]``, as in BERT.

    .. math:: \tanh(W x_{\mathrm{first}} + b)

    Args:
        channels (int): Size of each token, in and out.
        dropout (float): Dropout on :math:`x_{\mathrm{first}}`, which RoBERTa's classifier uses.
    """

    def __init__(self, channels: int, dropout: float = 0.):
        super().__init__()
        check_sides(channels=channels)
        check_dropout(dropout=dropout)
        self.channels = channels
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(channels, channels)

    def forward(self, x: Tensor, ptr: Tensor) -> Tensor:
        """Return the vector of each sequence.

        Args:
            x (Tensor): Tokens of all sequences, one after the other, ``[num_tokens, channels]``.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.

        Returns:
            Tensor ``[num_sequences, channels]``.

        Raises:
            ValueError: A sequence is empty.
        """
        check_features(x, self.channels, self.linear)
        check_ptr('ptr', ptr, x.size(0), x.device)
        check_not_empty(ptr)
        return self.linear(self.dropout(x[ptr[:-1]])).tanh()


def _head(channels: int, num_classes: int, hidden_channels: int | list[int] | None,
          dropout: float) -> nn.Sequential:
    check_sides(num_classes=num_classes)
    sizes = hidden_channels if isinstance(hidden_channels, list) else [hidden_channels]
    sizes = [channels, *(size for size in sizes if size is not None)]
    for size in sizes[1:]:
        check_sides(hidden_channels=size)
    check_dropout(dropout=dropout)
    hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Dropout(dropout), *hidden, nn.Linear(sizes[-1], num_classes))


def check_local(placement: Placement) -> None:
    if placement is not LOCAL:
        raise ValueError("'placement' must be omitted, because the model pools all tokens of a "
                         "sequence, and other processes or a cache have some of them; call the "
                         "encoder with 'placement', and pool the output of SequenceParallel.gather")


def check_not_empty(ptr: Tensor) -> None:
    if not is_traced(ptr) and bool((host_copy(ptr).diff() == 0).any()):
        raise ValueError(f"'ptr' must mark sequences of at least one token, because empty "
                         f"sequences cannot be pooled (got {ptr.tolist()})")
