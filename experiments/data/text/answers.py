"""Exact match and F1 of an answer, computed as the evaluations of SQuAD and TriviaQA do."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable

_ARTICLE = re.compile(r'\b(a|an|the)\b')
_NOT_PUNCTUATION = str.maketrans('', '', string.punctuation)
_BLANK_FOR_PUNCTUATION = str.maketrans(dict.fromkeys(f'{string.punctuation}‘’´`', ' '))


def squad_words(text: str) -> list[str]:
    """Return the words of an answer as in SQuAD's evaluation: no case, punctuation or articles."""
    return _ARTICLE.sub(' ', text.lower().translate(_NOT_PUNCTUATION)).split()


def trivia_words(text: str) -> list[str]:
    """Return the words of an answer as TriviaQA's evaluation compares them."""
    return _ARTICLE.sub(' ', text.lower().translate(_BLANK_FOR_PUNCTUATION)).split()


WORDS = {'squad': squad_words, 'triviaqa': trivia_words}


def agreement(answer: str, accepted: Iterable[str],
              words: Callable[[str], list[str]] = squad_words) -> tuple[float, float]:
    """Return exact match and F1, from 0 to 1, of an answer compared with the accepted answer that
    it agrees with best, as in SQuAD's scripts."""
    said = words(answer)
    right = [own for text in accepted if (own := words(text))] or [[]]
    return (float(said in right), max(_f1(said, own) for own in right))


def _f1(said: list[str], right: list[str]) -> float:
    if not said or not right:
        return float(said == right)
    shared = (Counter(said) & Counter(right)).total()
    return 2 * shared / (len(said) + len(right))
