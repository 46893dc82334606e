"""Batches that tasks pass to modules: concatenated sequences and their targets."""

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
    """Concatenated sequences of WordPiece tokens, without padding."""

    tokens: Tensor  # ids, int64 [num_tokens]
    ptr: Tensor  # where each sequence begins, int64 [num_sequences + 1]
    segments: Tensor  # 0 up to the first [SEP], 1 after it, int64 [num_tokens]
    selected: Tensor  # positions of the tokens to predict, int64 [num_selected]
    target: Tensor  # the original ids of these tokens, int64 [num_selected]
    # The class or score of each sequence. In pre-training, 0 if the second segment follows the
    # first, and 1 if it is from another document; empty without pairs.
    label: Tensor


class QuestionBatch(NamedTuple):
    """Concatenated windows of the texts of questions, each of which begins with its question."""

    tokens: Tensor  # ids, int64 [num_tokens]
    ptr: Tensor  # where each window begins, int64 [num_windows + 1]
    segments: Tensor  # 0 up to the first [SEP], 1 after it, int64 [num_tokens]
    num_global: Tensor  # leading tokens of each window up to [SEP], int64 [num_windows]
    # The first and the last token of each answer, int64 [num_answers]. Each window has at least one
    # entry, which is [CLS] if the window contains no answer.
    first: Tensor
    last: Tensor
    question_ptr: Tensor  # the first window of each question, int64 [num_questions + 1]
    # Start and end of each token in the characters of its text, -1 in questions, int64
    # [num_tokens, 2].
    offset: Tensor
    contexts: list[str]  # of the windows
    ids: list[str]  # of the questions
    accepted: list[tuple[str, ...]]  # answers of each question


class ChoiceBatch(NamedTuple):
    """Questions with several choices each, one of which is right."""

    tokens: Tensor  # ids, int64 [num_tokens]
    ptr: Tensor  # where each sequence begins, int64 [num_sequences + 1]
    segments: Tensor  # 0 up to the first [SEP], 1 after it, int64 [num_tokens]
    num_global: Tensor  # leading global tokens of each sequence, int64 [num_sequences]
    selected: Tensor  # the tokens of choices, perhaps several of one choice
    choice: Tensor  # of each selected token, among all choices of the batch, int64
    choice_ptr: Tensor  # the first choice of each question, int64 [num_questions + 1]
    label: Tensor  # the right choice within each question, int64 [num_questions]


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
