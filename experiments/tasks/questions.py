"""Questions whose answers are spans of a text."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

from experiments.data.batch import QuestionBatch
from experiments.data.sequences import check_at_least
from experiments.data.text.question_files import Question, QuestionData, QuestionSource, listed
from experiments.data.text.tokenizer import encoded, special_tokens
from experiments.tasks.tokenized import TokenizedTask, spread_of_lengths

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NUM_SPECIAL = 3


class QuestionTask(TokenizedTask):
    """Base class of tasks of questions, whose test part may be the development part."""

    def __init__(self, questions: Any, max_length: int, batch_size: int, **kwargs):
        super().__init__(max_length, batch_size, **kwargs)
        self.questions = questions

    @abstractmethod
    def encoded(self, part: str, tokenizer: Tokenizer) -> Any:
        """Return the questions of a part as token ids, which describe themselves."""

    @cached_property
    def data(self) -> QuestionData:
        return self.questions.read()

    def setup(self, stage: str | None = None) -> None:
        tokenizer, parts = self.load_tokenizer(), self.data.parts
        for part in ('train', 'dev', 'test') if stage in (None, 'fit') else ('dev', 'test'):
            if part == 'test' and parts['test'] is parts['dev']:
                self.sets['test'] = self.sets['dev']
            elif part not in self.sets:
                self.sets[part] = self.encoded(part, tokenizer)
                self.sets[part].describe(self.data.about, part)


class Questions(QuestionTask):
    """Questions, and the texts that contain their answers::

        tokens    [CLS] who sang ? [SEP] ... the song was sung by nina simone in ... [SEP]
        segments    0    0   0   0   0    1   1   1    1   1    1   1    1    1   1    1
        first, last                                                 ^    ^

    A text that is too long is cut into overlapping windows. Each window begins with the whole
    question. In training, windows are independent examples. The target of a window without an
    answer is [CLS], as in BERT. A window that contains only parts of answers is left out. A warning
    lists questions for which no window contains a whole answer. In testing, a question is answered
    from all of its windows.

    Args:
        questions (QuestionSource): The source of the questions.
        max_length (int): Maximum number of tokens of a window.
        stride (int): Number of tokens from the start of a window to the start of the next window.
        max_question (int): Maximum number of tokens of a question. Longer questions are cut.
        learn_empty (bool): Whether to train on windows without an answer. Longformer leaves such
            windows out for TriviaQA.
        batch_size (int): Number of windows per step and process. In testing, it is the number of
            questions.
        **kwargs: Arguments of :class:`experiments.tasks.tokenized.TokenizedTask`.
    """

    shortest = NUM_SPECIAL + 2

    def __init__(self, questions: QuestionSource, max_length: int = 384, stride: int = 128,
                 max_question: int = 64, learn_empty: bool = True, batch_size: int = 32, **kwargs):
        super().__init__(questions, max_length, batch_size, **kwargs)
        check_at_least(1, stride=stride, max_question=max_question)
        if max_question > max_length - NUM_SPECIAL - 1:
            raise ValueError(f"'max_question' must be at most {max_length - NUM_SPECIAL - 1}, to "
                             f"leave room for the text (got {max_question})")
        self.stride, self.max_question, self.learn_empty = stride, max_question, learn_empty

    def texts(self) -> Iterable[str]:
        questions = self.data.parts['train']
        contexts = dict.fromkeys(chain.from_iterable(question.contexts for question in questions))
        return chain(contexts, (question.text for question in questions))

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        if 'train' in self.sets:
            encoded = self.sets['train']
            encoded.learned = encoded.to_learn(self.learn_empty)

    def encoded(self, part: str, tokenizer: Tokenizer) -> EncodedQuestions:
        return EncodedQuestions(self.data.parts[part], tokenizer, self.max_length, self.stride,
                                self.max_question, part)

    def train_dataloader(self) -> DataLoader:
        encoded = self.sets['train']
        return self.for_training(encoded.learned_batch, encoded.window_length[encoded.learned])

    def in_order(self, part: str) -> DataLoader:
        encoded = self.sets[part]
        return self.longest_first(encoded.questions_batch, encoded.length_of_question)


class EncodedQuestions:
    """Questions and their texts as token ids, cut into windows."""

    def __init__(self, questions: list[Question], tokenizer: Tokenizer, max_length: int,
                 stride: int, max_question: int, name: str):
        self.questions, self.special = questions, special_tokens(tokenizer)
        self.asked = [np.array(one.ids[:max_question], dtype=np.int32) for one in encoded(
            tokenizer, [question.text for question in questions], f'encoding questions of {name}')]
        texts = list(dict.fromkeys(chain.from_iterable(q.contexts for q in questions)))
        number_of = {text: number for number, text in enumerate(texts)}
        # ids, and where each token begins and ends in the text, [num_tokens, 2]
        self.texts = [(np.array(one.ids, dtype=np.int32),
                       np.array(one.offsets, dtype=np.int32).reshape(-1, 2)) for one in encoded(
                           tokenizer, texts, f'encoding texts of {name}', with_offsets=True)]
        self.text_of = [[number_of[text] for text in question.contexts] for question in questions]
        windows, self.window_ptr = [], [0]
        for number, asked in enumerate(self.asked):
            room = max_length - NUM_SPECIAL - len(asked)
            for context, text in enumerate(self.text_of[number]):
                windows += [(number, context, begin, end) for begin, end in window_spans(
                    len(self.texts[text][0]), room, stride)]
            self.window_ptr.append(len(windows))
        table = np.array(windows, dtype=np.int64).reshape(-1, 4)
        # of each window; those of a question are consecutive
        self.question, self.context, self.begin, self.end = table.T
        self.window_ptr = np.array(self.window_ptr)  # the first window of each question
        self.window_length = NUM_SPECIAL + self.end - self.begin + np.array(
            [len(asked) for asked in self.asked])[self.question]
        before = np.concatenate([[0], np.cumsum(self.window_length)])
        self.length_of_question = np.diff(before[self.window_ptr])
        self.answers = [self._answers(number) for number in range(len(questions))]

    def _answers(self, number: int) -> list[tuple[int, int, int]]:
        """Return a tuple for each answer of a question: the index of its context, its first token
        and its last token."""
        return [(context, *tokens) for context, begin, end in self.questions[number].spans
                if (tokens := tokens_of(self.texts[self.text_of[number][context]][1], begin, end))]

    def answers_in(self, window: int) -> tuple[list[tuple[int, int]], bool]:
        """Return the answers in a window, and whether it also has a part of an answer."""
        whole, has_part, begin, end = [], False, self.begin[window], self.end[window]
        before = 2 + len(self.asked[self.question[window]]) - begin
        for context, first, last in self.answers[self.question[window]]:
            if context == self.context[window] and first < end and last >= begin:
                if first >= begin and last < end:
                    whole.append((first + before, last + before))
                else:
                    has_part = True
        return whole, has_part

    def to_learn(self, learn_empty: bool) -> np.ndarray:
        """Return the indices of the windows to train on; warn of questions without any."""
        found = [self.answers_in(window) for window in range(len(self.question))]
        has_whole = np.array([bool(whole) for whole, _ in found], dtype=bool)
        is_empty = np.array([not whole and not has_part for whole, has_part in found], dtype=bool)
        held = np.zeros(len(self.questions), dtype=bool)
        held[self.question[has_whole]] = True
        lost = [question.id for question, is_held in zip(self.questions, held)
                if question.spans and not is_held]
        if lost:
            warnings.warn(f"no window contains a whole answer of {len(lost)} questions: "
                          f"{listed(lost)}; raise 'max_length' or lower 'stride'", stacklevel=2)
        # A question whose answer is in no window must not count as a question without an answer.
        is_empty &= np.array([is_held or not question.spans for question, is_held in zip(
            self.questions, held)], dtype=bool)[self.question]
        if not has_whole.any():
            raise ValueError("'max_length' must leave room for answers in the text (got no "
                             "training window with an answer); raise 'max_length', or lower "
                             "'max_question'")
        return np.flatnonzero(has_whole | is_empty & learn_empty)

    def questions_batch(self, numbers: Sequence[int]) -> QuestionBatch:
        windows = [range(*self.window_ptr[number:number + 2]) for number in numbers]
        return self.batch(list(chain.from_iterable(windows)), numbers, list(map(len, windows)))

    def learned_batch(self, numbers: Sequence[int]) -> QuestionBatch:
        windows = self.learned[numbers]
        return self.batch(windows, self.question[windows].tolist(), [1] * len(windows))

    def batch(self, windows: Sequence[int], numbers: Sequence[int],
              counts: Sequence[int]) -> QuestionBatch:
        special = self.special
        tokens, offsets, num_global, answers, contexts = [], [], [], [], []
        ptr = np.concatenate([[0], np.cumsum(self.window_length[np.array(windows, dtype=int)])])
        for window, start in zip(windows, ptr):
            number = self.question[window]
            asked, context = self.asked[number], self.context[window]
            ids, offset = self.texts[self.text_of[number][context]]
            begin, end = self.begin[window], self.end[window]
            tokens.append(np.concatenate([[special.cls], asked, [special.sep], ids[begin:end],
                                          [special.sep]]))
            offsets.append(np.pad(offset[begin:end], ((len(asked) + 2, 1), (0, 0)),
                                  constant_values=-1))
            num_global.append(len(asked) + 2)
            whole = self.answers_in(window)[0] or [(0, 0)]
            answers += [(start + first, start + last) for first, last in whole]
            contexts.append(self.questions[number].contexts[context])
        segments = np.concatenate([np.zeros(0), *(
            np.arange(len(own)) >= count for own, count in zip(tokens, num_global))])
        first, last = np.array(answers, dtype=np.int64).reshape(-1, 2).T
        question_ptr = np.concatenate([[0], np.cumsum(counts)])
        arrays = (np.concatenate([np.zeros(0), *tokens]), ptr, segments, num_global, first, last,
                  question_ptr, np.concatenate([np.zeros((0, 2)), *offsets]))
        chosen = [self.questions[number] for number in numbers]
        return QuestionBatch(
            *(torch.from_numpy(np.asarray(array, dtype=np.int64)) for array in arrays), contexts,
            [question.id for question in chosen], [question.accepted for question in chosen])

    @rank_zero_only
    def describe(self, about: str, name: str) -> None:
        num_without = sum(not question.accepted for question in self.questions)
        lengths = [len(asked) + sum(len(self.texts[text][0]) for text in texts)
                   for asked, texts in zip(self.asked, self.text_of)]
        print(f'{about}, {name:<5} {len(self.questions):>7,} questions, {num_without:,} without an '
              f'answer; {spread_of_lengths(lengths)}; {len(self.question):,} windows, the longest '
              f'of {self.window_length.max(initial=0):,} tokens')


def window_spans(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return the spans of the windows that cover a text, as pairs of begin and end.

    Example:
        >>> window_spans(10, 6, 2)
        [(0, 6), (2, 8), (4, 10)]
    """
    step = min(stride, room)
    num_more = -(-max(0, length - room) // step)
    return [(step * i, min(step * i + room, length)) for i in range(num_more + 1)]


def tokens_of(offset: np.ndarray, begin: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last token that overlap the characters, or ``None``."""
    first = int(np.searchsorted(offset[:, 1], begin, side='right'))
    last = int(np.searchsorted(offset[:, 0], end, side='left')) - 1
    return (first, last) if first <= last else None
