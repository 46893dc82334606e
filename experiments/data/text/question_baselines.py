"""Baselines for questions, which learn almost nothing."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from experiments.data.text.answers import agreement
from experiments.data.text.choice_files import ChoiceQuestion
from experiments.data.text.local_questions import GAP
from experiments.data.text.question_files import Question, QuestionData

_WORD = re.compile(r'\w+')
NEARBY = 10  # words


def longest_match_scores(questions: list[Question]) -> dict[str, float]:
    """Return the mean exact match and the mean F1 of the answers of :func:`longest_match`, from 0
    to 1, by name."""
    scores = [agreement(longest_match(question), question.accepted) for question in questions]
    return dict(zip(('exact_match', 'f1'), np.mean(scores, axis=0).tolist()))


def longest_match(question: Question) -> str:
    """Return the word of a text that fits best into the gap of a question: as many words as
    possible around it are the same as around the gap.

    If several words fit equally well, it is the word with the most words of the question nearby.
    """
    before, _, after = (_words(part) for part in question.text.partition(GAP))
    asked = {*before, *after}
    best = (-1, -1), ''
    for context in question.contexts:
        words = _words(context)
        for place, word in enumerate(words):
            if word in asked:
                continue
            run = (_run(before[::-1], words[:place][::-1][:len(before)])
                   + _run(after, words[place + 1:place + 1 + len(after)]))
            near = words[max(0, place - NEARBY):place + NEARBY + 1]
            score = run, sum(other in asked for other in near)
            best = max(best, (score, word), key=lambda row: row[0])
    return best[1]


def choice_accuracies(data: QuestionData) -> dict[str, float]:
    """Return the accuracies of two baselines, from 0 to 1.

    One predicts the most frequent label of the training part. The other predicts the choice that
    shares the largest fraction of its words with the question.
    """
    test = data.parts['test']
    most, = Counter(question.label for question in data.parts['train']).most_common(1)
    return {'most frequent number': float(np.mean([question.label == most[0]
                                                   for question in test])),
            'most shared words': float(np.mean([most_shared(question) == question.label
                                                for question in test]))}


def most_shared(question: ChoiceQuestion) -> int:
    """Return the index of the choice whose words also occur in the question most often, as a
    fraction of its words."""
    asked = {*_words(question.text)}
    shares = [np.mean([word in asked for word in words]) if (words := _words(choice)) else 0.
              for choice in question.choices]
    return int(np.argmax(shares))


def _run(asked: list[str], found: list[str]) -> int:
    return next((place for place, (one, other) in enumerate(zip(asked, found)) if one != other),
                min(len(asked), len(found)))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
