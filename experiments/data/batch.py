"""Batches that tasks pass to modules: concatenated sequences and their targets."""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

import torch
from torch import Tensor

NO_LABEL = -100  # the ignore_index of torch's cross-entropy


class TokenBatch(NamedTuple):
    """Concatenated sequences without padding.

    This is the batch of :class:`experiments.modules.Classification` and its subclasses.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): The first token of each sequence, and the end of the last sequence, int64
            ``[num_sequences + 1]``.
        label (Tensor): The class of each sequence, each pair of sequences or each token, int64.
            ``NO_LABEL`` marks a token without a class.

    Two sequences, of three and two tokens::

        TokenBatch(tokens=torch.tensor([5, 3, 9, 5, 7]), ptr=torch.tensor([0, 3, 5]),
                   label=torch.tensor([1, 0]))
    """

    tokens: Tensor
    ptr: Tensor
    label: Tensor


class TextBatch(NamedTuple):
    """Concatenated sequences of WordPiece tokens, without padding.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        segments (Tensor): 0 up to the first [SEP], 1 after it, int64 ``[num_tokens]``.
        selected (Tensor): Positions of the tokens to predict, int64 ``[num_selected]``.
        target (Tensor): The original ids of these tokens, int64 ``[num_selected]``.
        label (Tensor): The class or score of each sequence. In pre-training, the label is 0 if the
            second segment follows the first, and 1 if the second is from another document. Without
            pairs, the tensor is empty.
    """

    tokens: Tensor
    ptr: Tensor
    segments: Tensor
    selected: Tensor
    target: Tensor
    label: Tensor


class QuestionBatch(NamedTuple):
    """Concatenated windows of the texts of questions. Each window begins with its question.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each window begins, int64 ``[num_windows + 1]``.
        segments (Tensor): 0 up to the first [SEP], 1 after it, int64 ``[num_tokens]``.
        num_global (Tensor): The number of leading tokens of each window that belong to the
            question, [CLS] and [SEP] included, int64 ``[num_windows]``.
        first (Tensor): The first token of each answer, int64 ``[num_answers]``. Each window has at
            least one entry, which is [CLS] if the window contains no answer.
        last (Tensor): The last token of each answer, int64 ``[num_answers]``.
        question_ptr (Tensor): The first window of each question, int64 ``[num_questions + 1]``.
        offset (Tensor): Start and end of each token in the characters of its text, int64
            ``[num_tokens, 2]``; -1 for tokens of the question.
        contexts (list of str): The text of each window.
        ids (list of str): The id of each question.
        accepted (list): The accepted answers of each question.
    """

    tokens: Tensor
    ptr: Tensor
    segments: Tensor
    num_global: Tensor
    first: Tensor
    last: Tensor
    question_ptr: Tensor
    offset: Tensor
    contexts: list[str]
    ids: list[str]
    accepted: list[tuple[str, ...]]


class ChoiceBatch(NamedTuple):
    """Questions with several choices each. One choice of each question is right.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        segments (Tensor): 0 up to the first [SEP], 1 after it, int64 ``[num_tokens]``.
        num_global (Tensor): The number of leading global tokens of each sequence, int64
            ``[num_sequences]``.
        selected (Tensor): The token of each choice, int64 ``[num_choices]``.
        choice (Tensor): The choice that each selected token represents, as its index among all
            choices of the batch, int64 ``[num_choices]``. Several tokens may represent one choice.
        choice_ptr (Tensor): The first choice of each question, int64 ``[num_questions + 1]``.
        label (Tensor): The index of the right choice within each question, int64
            ``[num_questions]``.
    """

    tokens: Tensor
    ptr: Tensor
    segments: Tensor
    num_global: Tensor
    selected: Tensor
    choice: Tensor
    choice_ptr: Tensor
    label: Tensor


def check_batch(batch: object, kind: type = TokenBatch) -> None:
    """Raise an error unless ``batch`` is a valid batch of the class ``kind``. Data modules of users
    may return other batches.

    Args:
        batch (object): The batch.
        kind (type): The class of this module that the batch must resemble: the batch must have all
            of its fields.

    Raises:
        TypeError: A field is missing, or not a tensor of its type; the message names the field.
        ValueError: The shape of a field is wrong, or ``ptr`` marks no sequences.
    """
    for name in kind._fields:
        if not hasattr(batch, name):
            raise TypeError(f"a batch must be a {kind.__module__}.{kind.__name__} with the fields "
                            f"{', '.join(kind._fields)}, but {name!r} is missing (got "
                            f"{_form(batch)})")
    tensors = [name for name, hint in get_type_hints(kind).items() if hint is Tensor]
    for name in tensors:
        value = getattr(batch, name)
        is_score = kind is TextBatch and name == 'label'
        if not isinstance(value, Tensor) or value.dtype != torch.int64 and not (
                is_score and value.is_floating_point()):
            raise TypeError(f"{name!r} of a batch must be an int64 Tensor (got {_form(value)})")
        if value.dim() != (2 if name == 'offset' else 1):
            raise ValueError(f"{name!r} of a batch must have one dimension, because sequences are "
                             f"concatenated without padding (got shape {tuple(value.shape)})")
    tokens, ptr = batch.tokens, batch.ptr
    if ptr.numel() < 2 or ptr[0] != 0 or ptr[-1] != tokens.numel() or (ptr.diff() < 0).any():
        raise ValueError(f"'ptr' of a batch must begin with 0, never decrease, and end with "
                         f"{tokens.numel()}, the number of tokens (got "
                         f"{ptr[:8].tolist()}{' ...' if ptr.numel() > 8 else ''} of shape "
                         f"{tuple(ptr.shape)})")
    num_sequences = ptr.numel() - 1
    if kind is TokenBatch and batch.label.numel() not in (num_sequences, num_sequences / 2,
                                                          tokens.numel()):
        raise ValueError(f"'label' of a batch must have {num_sequences} entries (one for each "
                         f"sequence), one entry for each pair of sequences, or {tokens.numel()} "
                         f"(one for each token) (got shape {tuple(batch.label.shape)})")


def _form(value: object) -> str:
    if isinstance(value, Tensor):
        return f'{value.dtype} of shape {tuple(value.shape)}'
    name = type(value).__name__
    if isinstance(value, dict):
        return f"{name} of {', '.join(map(str, value))}"
    fields = getattr(value, '_fields', None)
    if fields is not None:
        return f"{name} of {', '.join(fields)}"
    return f'{name} of {len(value)}' if isinstance(value, list | tuple) else name
