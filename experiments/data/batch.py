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
    """Questions with several answers each, of which one is right.

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
