"""Prediction of the next token."""

from __future__ import annotations

from graphattn.models.classifiers import TokenClassifier
from graphattn.models.encoder import Encoder, check_encoder, vocabulary_size


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
        check_encoder(encoder, predicts_tokens=True)
        if not getattr(encoder, 'causal', False):
            raise ValueError("'encoder' must be causal, because the model predicts the next token, "
                             "which a token must not attend to (got causal=False); build the "
                             "Encoder with causal=True")
        super().__init__(encoder, vocabulary_size(encoder))
