"""BERT's pooler."""

from __future__ import annotations

from torch import Tensor, nn

from graphattn._checks import check_dropout, check_features, check_ptr, check_sides
from graphattn._explained import Explained
from graphattn._tensors import host_copy, is_traced
from graphattn.functional.drive import LOCAL, Placement


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


def check_local(placement: Placement) -> None:
    if placement is not LOCAL:
        raise ValueError("'placement' must be omitted, because the model pools all tokens of a "
                         "sequence, and other processes or a cache have some of them; call the "
                         "encoder with 'placement', and pool the output of SequenceParallel.gather")


def check_not_empty(ptr: Tensor) -> None:
    if not is_traced(ptr) and bool((host_copy(ptr).diff() == 0).any()):
        raise ValueError(f"'ptr' must mark sequences of at least one token, because empty "
                         f"sequences cannot be pooled (got {ptr.tolist()})")
