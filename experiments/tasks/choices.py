"""Multiple-choice questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only

from experiments.data.batch import ChoiceBatch
from experiments.data.text.choice_files import ChoiceQuestion, ChoiceSource
from experiments.data.text.tokenizer import cut, encoded, special_tokens
from experiments.tasks.questions import QuestionTask, window_spans
from experiments.tasks.tokenized import spread_of_lengths

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Choices(QuestionTask):
    """Multiple-choice questions as token sequences, in one of two forms.

    Without documents, each choice has a sequence, as in BERT for SWAG::

        [CLS] she opens the door [SEP] she walks into the room [SEP] ^ the first token represents
        the choice

    With documents, all choices are in one sequence before the documents, as in Longformer for
    WikiHop, with [MASK] in place of Longformer's extra tokens. Long documents are cut into pieces.
    The question and all choices precede each piece, and the logit of a choice is the mean over the
    pieces::

        [CLS] country ancient rome [SEP] [MASK] italy [MASK] greece [SEP] rome is ... [SEP] ...
                                            ^            ^

    Args:
        questions (ChoiceSource): The source of the questions.
        max_length (int): Maximum number of tokens of a sequence. Without documents, the question or
            the choice is cut, whichever is longer.
        batch_size (int): Number of questions per step and process.
        **kwargs: Arguments of :class:`experiments.tasks.tokenized.TokenizedTask`.
    """

    shortest = 5

    def __init__(self, questions: ChoiceSource, max_length: int = 128, batch_size: int = 16,
                 **kwargs):
        super().__init__(questions, max_length, batch_size, **kwargs)

    def texts(self) -> Iterable[str]:
        return chain.from_iterable((question.text, *question.choices, *question.documents)
                                   for question in self.data.parts['train'])

    def encoded(self, part: str, tokenizer: Tokenizer) -> EncodedChoices:
        return EncodedChoices(self.data.parts[part], tokenizer, self.max_length, part)


class EncodedChoices:
    """Multiple-choice questions as token ids, from which batches are made."""

    def __init__(self, questions: list[ChoiceQuestion], tokenizer: Tokenizer, max_length: int,
                 name: str):
        self.special, self.max_length = special_tokens(tokenizer), max_length
        self.label = np.array([question.label for question in questions])
        self.ids = [question.id for question in questions]
        texts = list(dict.fromkeys(chain.from_iterable(
            (question.text, *question.choices, *question.documents) for question in questions)))
        ids = {text: np.array(one.ids, dtype=np.int32) for text, one in zip(
            texts, encoded(tokenizer, texts, f'encoding choices of {name}'))}
        self.parts = [(ids[question.text], [ids[choice] for choice in question.choices],
                       [ids[document] for document in question.documents])
                      for question in questions]
        # of all sequences of a question together
        self.lengths = np.array([sum(len(tokens) for tokens, *_ in self._sequences(number))
                                 for number in range(len(questions))], dtype=np.int64)

    def batch(self, numbers: Sequence[int]) -> ChoiceBatch:
        tokens, first, num_global, selected, choice = [], [], [], [], []
        start, choice_ptr, ptr = 0, [0], [0]
        for number in numbers:
            for own, num_first, own_global, places, choices in self._sequences(number):
                tokens.append(own)
                first.append(np.arange(len(own)) >= num_first)
                num_global.append(own_global)
                selected += [start + place for place in places]
                choice += [choice_ptr[-1] + which for which in choices]
                start += len(own)
                ptr.append(start)
            choice_ptr.append(choice_ptr[-1] + len(self.parts[number][1]))
        arrays = (np.concatenate(tokens), ptr, np.concatenate(first), num_global, selected, choice,
                  choice_ptr, self.label[np.array(numbers)])
        return ChoiceBatch(*(torch.from_numpy(np.asarray(array, dtype=np.int64))
                             for array in arrays))

    def _sequences(self, number: int) -> Iterable[tuple[np.ndarray, int, int, list[int], list]]:
        # Each is a tuple: the tokens, the length of the first segment, the number of global tokens,
        # the positions of the choices in the sequence, and the indices of these choices.
        text, choices, documents = self.parts[number]
        cls, sep = [self.special.cls], [self.special.sep]
        if not documents:
            for which, choice in enumerate(choices):
                asked, choice = cut([text, choice], self.max_length - 3)
                tokens = np.concatenate([cls, asked, sep, choice, sep])
                yield tokens, len(asked) + 2, 0, [0], [which]
            return
        marked = [np.append([self.special.mask], choice) for choice in choices]
        before = np.concatenate([cls, text, sep, *marked, sep])
        places = len(text) + 2 + np.cumsum([0, *map(len, marked[:-1])])
        read = np.concatenate([np.append(document, sep) for document in documents])
        room = self.max_length - len(before)
        if room < 2:
            raise ValueError(f"'max_length' must be at least {len(before) + 2}, to contain "
                             f"question {self.ids[number]!r}, its {len(choices)} choices and two "
                             f"tokens of the document (got {self.max_length})")
        for begin, end in window_spans(len(read), room, room):
            yield (np.concatenate([before, read[begin:end]]), len(before), len(before),
                   places.tolist(), list(range(len(choices))))

    @rank_zero_only
    def describe(self, about: str, name: str) -> None:
        counts = [len(choices) for _, choices, _ in self.parts]
        lengths = [sum(map(len, (text, *choices, *documents)))
                   for text, choices, documents in self.parts]
        range_of = dict.fromkeys((min(counts), max(counts)))  # a single number if the two are equal
        most = np.bincount(self.label).max()
        print(f'{about}, {name:<5} {len(self.label):>7,} questions of '
              f'{" to ".join(map(str, range_of))} choices; the most frequent label has '
              f'{most / len(self.label):.1%}; {spread_of_lengths(lengths)}; '
              f'the longest sequence has {self.lengths.max():,} tokens')
