"""What tasks hand to objectives: sequences one after the other, and what is to be said of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

NO_LABEL = -100  # what torch's cross-entropy leaves out


class Batch(NamedTuple):
    """Sequences one after the other.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        label (Tensor): One class for each sequence, or for each token (NO_LABEL: none).
    """

    tokens: Tensor
    ptr: Tensor
    label: Tensor


class TextBatch(NamedTuple):
    """Sequences of WordPiece tokens one after the other.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        segments (Tensor): 0 up to the first [SEP], 1 after it, int64 ``[num_tokens]``.
        selected (Tensor): Which tokens are to be predicted, int64 ``[num_selected]``.
        target (Tensor): What they were, int64 ``[num_selected]``.
        label (Tensor): One class or score for each sequence. In pre-training 0 if the second
            segment follows the first one, 1 if it is from another document; empty without pairs.
    """

    tokens: Tensor
    ptr: Tensor
    segments: Tensor
    selected: Tensor
    target: Tensor
    label: Tensor
