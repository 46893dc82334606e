"""Extraction of the answer to a question from a text."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graphattn._checks import (
    check_floating,
    check_has_numbers,
    check_on,
    check_ptr,
    check_shape,
    check_sides,
    check_strided,
)
from graphattn._tensors import host_copy
from graphattn.models.classifiers import TokenClassifier
from graphattn.models.encoder import Encoder


class SpanModel(TokenClassifier):
    r"""Predict the first and the last token of an answer, by two logits for each token.

    .. math::
        p_\mathrm{first}(i) = \mathrm{softmax}_i \langle w_1, x_i \rangle, \qquad
        p_\mathrm{last}(i) = \mathrm{softmax}_i \langle w_2, x_i \rangle

    A sequence consists of a question and a text, and the softmax is over its tokens. If the text
    has no answer, the first token of the sequence is the first and the last token of the answer.
    :func:`best_spans` finds answers from the logits.

    Args:
        encoder (Encoder): Encodes the tokens.
        dropout (float): Dropout on the encoded tokens.

    Source: Devlin et al., BERT (2019), Sec. 4.2 and 4.3.

    Example:
        >>> import torch
        >>> from graphattn.models import Encoder, SpanModel, best_spans
        >>> encoder = Encoder('SlidingWindow(2)', num_tokens=100, max_length=16, channels=32,
        ...                   heads=4, num_layers=2)
        >>> tokens, ptr = torch.randint(100, (20,)), torch.tensor([0, 8, 20])  # two sequences
        >>> logits = SpanModel(encoder)(tokens, ptr)
        >>> spans = best_spans(logits, ptr, torch.arange(20) % 8 > 3, num_best=5)
        >>> logits.shape, spans.score.shape
        (torch.Size([20, 2]), torch.Size([2, 5]))
    """

    def __init__(self, encoder: Encoder, *, dropout: float = 0.):
        super().__init__(encoder, 2, dropout=dropout)


class Spans(NamedTuple):
    """The best answers of each sequence, in descending order of their scores."""

    score: Tensor  # sum of two logits, -inf beyond a sequence's spans, [num_sequences, num_best]
    first: Tensor  # index of the first token in the batch, int64; arbitrary where the score is -inf
    last: Tensor


def best_spans(logits: Tensor, ptr: Tensor, can_answer: Tensor, *, num_best: int = 20,
               max_tokens: int = 30) -> Spans:
    r"""Return the answers of each sequence with the highest scores, which are spans of at most
    :math:`m` tokens. The score of the span from token i to token j follows from the logits
    :math:`\ell`:

    .. math:: \mathrm{score}(i, j) = \ell_{i, 1} + \ell_{j, 2}, \qquad i \le j < i + m

    All spans of at most m tokens are compared. In contrast, BERT's decoding compares only pairs of
    the highest single logits and may miss the best span. The score of "no answer" is the score of
    the first token of a sequence, ``logits[ptr[:-1]].sum(dim=1)``.

    Args:
        logits (Tensor): Logits of a :class:`SpanModel`, ``[num_tokens, 2]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        can_answer (Tensor): Whether each token may be part of an answer, bool ``[num_tokens]``.
        num_best (int): Number of answers of each sequence.
        max_tokens (int): Maximum number of tokens :math:`m` of an answer.

    Raises:
        TypeError, ValueError: An argument is of the wrong type, or does not fit the others.
    """
    check_floating(logits=logits)
    check_has_numbers('logits', logits)
    check_shape('logits', logits, ('num_tokens', 2))
    check_ptr('ptr', ptr, logits.size(0), logits.device)
    if not isinstance(can_answer, Tensor) or can_answer.dtype != torch.bool:
        raise TypeError(f"'can_answer' must be a Tensor of dtype bool (got "
                        f"{getattr(can_answer, 'dtype', type(can_answer).__name__)})")
    check_strided('can_answer', can_answer)
    check_shape('can_answer', can_answer, (logits.size(0),), ', one entry for each token')
    check_on('can_answer', can_answer, logits.device, "'logits'")
    check_sides(num_best=num_best, max_tokens=max_tokens)
    allowed = logits.detach().float().masked_fill(~can_answer.unsqueeze(1), -torch.inf)
    begins, lengths = (part.tolist() for part in (host_copy(ptr), host_copy(ptr).diff()))
    rows = [_best_of_one(own, begin, num_best, max_tokens)
            for own, begin in zip(allowed.split(lengths), begins)]
    if not rows:
        return Spans(allowed.new_empty(0, num_best), *ptr.new_empty(2, 0, num_best))
    return Spans(*map(torch.stack, zip(*rows)))


def _best_of_one(logits: Tensor, begin: int, num_best: int,
                 max_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    first, last = logits.unbind(dim=1)
    max_tokens = min(max_tokens, max(len(first), 1))
    behind = torch.cat([last, last.new_full((max_tokens - 1,), -torch.inf)])
    scores = first.unsqueeze(1) + behind.unfold(0, max_tokens, 1) if len(first) else first
    score, place = scores.flatten().topk(min(num_best, scores.numel()))
    missing = num_best - score.numel()
    score = torch.cat([score, score.new_full((missing,), -torch.inf)])
    place = torch.cat([place, place.new_zeros(missing)])
    start = begin + place.div(max_tokens, rounding_mode='floor')
    end = max(begin + len(first) - 1, 0)  # the last token; placeholders may follow it
    return score, start.clamp(max=end), (start + place % max_tokens).clamp(max=end)
