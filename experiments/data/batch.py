"""Batches that tasks hand to modules: sequences one after the other, and their targets."""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

import torch
from torch import Tensor

NO_LABEL = -100  # what torch's cross-entropy leaves out


class Batch(NamedTuple):
    """Sequences one after the other: what the loaders of a data module give to
    :class:`experiments.modules.Classification` and the modules that build on it. There is no
    padding.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each sequence begins, and where the last one ends, int64
            ``[num_sequences + 1]``.
        label (Tensor): One class for each sequence, for each pair of sequences or for each token
            (NO_LABEL: none), int64.

    Two sequences, of three tokens and of two::

        Batch(tokens=torch.tensor([5, 3, 9, 5, 7]), ptr=torch.tensor([0, 3, 5]),
              label=torch.tensor([1, 0]))
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


class QuestionBatch(NamedTuple):
    """Windows of the texts of questions one after the other, each behind its question.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each window begins, int64 ``[num_windows + 1]``.
        segments (Tensor): 0 up to the first [SEP], 1 after it, int64 ``[num_tokens]``.
        num_global (Tensor): How many first tokens of each window are the question's, [CLS] and
            [SEP] included, int64 ``[num_windows]``.
        first (Tensor): The first tokens of answers, int64 ``[num_answers]``: at least one in each
            window, [CLS] if there is no answer in it.
        last (Tensor): The last ones.
        question_ptr (Tensor): The first window of each question, int64 ``[num_questions + 1]``.
        offset (Tensor): From where to where in the characters of its text a token stands, int64
            ``[num_tokens, 2]``; -1 for tokens of the question.
        contexts (list of str): The text of each window.
        ids (list of str): Of each question.
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
    """Questions with several choices each, one of them right.

    Attributes:
        tokens (Tensor): Ids, int64 ``[num_tokens]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        segments (Tensor): 0 up to the first [SEP], 1 after it, int64 ``[num_tokens]``.
        num_global (Tensor): How many first tokens of each sequence are global, int64
            ``[num_sequences]``.
        selected (Tensor): The token of each choice, int64 ``[num_choices]``.
        choice (Tensor): Which choice of which question that is: its number among those of all
            questions of the batch, int64 ``[num_choices]``. Several tokens may stand for one.
        choice_ptr (Tensor): The first choice of each question, int64 ``[num_questions + 1]``.
        label (Tensor): The right choice of each question, from 0 on, int64 ``[num_questions]``.
    """

    tokens: Tensor
    ptr: Tensor
    segments: Tensor
    num_global: Tensor
    selected: Tensor
    choice: Tensor
    choice_ptr: Tensor
    label: Tensor


def check_batch(batch: object, kind: type = Batch) -> None:
    """Check a batch of a data module that the user wrote.

    Args:
        batch (object): What came.
        kind (type): The class of this file whose fields it must have.

    Raises:
        TypeError: A field is missing, or is no tensor of its type; the message names it.
        ValueError: A field is of another shape, or ``ptr`` marks no sequences.
    """
    for name in kind._fields:
        if not hasattr(batch, name):
            raise TypeError(f"a batch must be a {kind.__module__}.{kind.__name__} of "
                            f"{', '.join(kind._fields)}: {name!r} is missing (got {_form(batch)})")
    tensors = [name for name, hint in get_type_hints(kind).items() if hint is Tensor]
    for name in tensors:
        value = getattr(batch, name)
        is_score = kind is TextBatch and name == 'label'
        if not isinstance(value, Tensor) or value.dtype != torch.int64 and not (
                is_score and value.is_floating_point()):
            raise TypeError(f"{name!r} of a batch must be a tensor of int64 (got {_form(value)})")
        if value.dim() != (2 if name == 'offset' else 1):
            raise ValueError(f"{name!r} of a batch must be one row of numbers, without padding "
                             f"(got shape {tuple(value.shape)})")
    tokens, ptr = batch.tokens, batch.ptr
    if ptr.numel() < 2 or ptr[0] != 0 or ptr[-1] != tokens.numel() or (ptr.diff() < 0).any():
        raise ValueError(f"'ptr' of a batch must rise from 0 to the {tokens.numel()} tokens (got "
                         f"{ptr[:8].tolist()}{' ...' if ptr.numel() > 8 else ''} of shape "
                         f"{tuple(ptr.shape)})")
    num_sequences = ptr.numel() - 1
    if kind is Batch and batch.label.numel() not in (num_sequences, num_sequences / 2,
                                                     tokens.numel()):
        raise ValueError(f"'label' of a batch must be one for each of {num_sequences} sequences, "
                         f"for each pair of them, or for each of {tokens.numel()} tokens (got "
                         f"shape {tuple(batch.label.shape)})")


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
