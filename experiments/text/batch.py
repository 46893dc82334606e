"""What a text task hands to a model."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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
