"""Questions, and the texts with their answers, read from the files of their publishers."""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from experiments.data.text.answers import trivia_words
from experiments.data.what_was_read import number_of, readable, tell, unread
from graphattn.utils.reading import json_value, read_text
from graphattn.utils.schema import check_schema

MAX_FILE = 2**31  # maximum bytes of a file; TriviaQA's web questions have 700 MB
MAX_SPANS = 64  # maximum number of answers per document, as in Longformer
MAX_NAMED = 20
_SQUAD = {'data': [{'paragraphs': [{'context': str, 'qas': [{
    'id': str, 'question': str, 'is_impossible?': bool, str: object,
    'answers': [{'text': str, 'answer_start': int, str: object}]}], str: object}], str: object}],
    str: object}
_PAGES = [{'Filename': str, 'DocPartOfVerifiedEval?': object, str: object}]
_TRIVIA_ROW = {
    'QuestionId': str, 'Question': str, 'QuestionPartOfVerifiedEval?': bool, 'EntityPages?': _PAGES,
    'Answer': {'Value': str, 'Aliases': [str], 'NormalizedAliases': [str], 'HumanAnswers?': [str],
               str: object}, str: object}
_DOMAINS = ('Wikipedia', 'Web')
_TRIVIA = {domain: {'Domain': _DOMAINS, 'VerifiedEval': bool, 'Data': [row], str: object}
           for domain, row in zip(_DOMAINS, (_TRIVIA_ROW, {**_TRIVIA_ROW,
                                                           'SearchResults?': _PAGES}))}


class Question(NamedTuple):
    """A question to answer from texts, with these texts and the answers."""

    id: str  # unique within its part
    text: str
    contexts: tuple[str, ...]  # the texts that may contain the answer
    spans: tuple[tuple[int, int, int], ...]  # answers: the context, begin and end in characters
    accepted: tuple[str, ...]  # answers; empty if the question has none


class QuestionData(NamedTuple):
    """Questions with ids of ``train``, ``dev`` and ``test``, and a description of the data."""

    about: str
    parts: dict[str, list]


class QuestionSource(ABC):
    """Base class of sources. A source reads the questions of a task."""

    @abstractmethod
    def read(self) -> QuestionData:
        """Return all questions of the source. Every call returns the same questions."""


@dataclass(frozen=True)
class Squad(QuestionSource):
    """SQuAD 1.1 or 2.0, or another data set in its format::

        {"data": [{"title": ..., "paragraphs": [{"context": "It is a lamp.", "qas": [
            {"id": "1", "question": "What is it?", "is_impossible": false,
             "answers": [{"text": "a lamp", "answer_start": 6}]}]}]}]}

    Questions whose answers are not at their stated positions are excluded from training, with a
    warning that lists their ids.

    Args:
        train (str): train-v1.1.json or train-v2.0.json.
        dev (str): dev-v1.1.json or dev-v2.0.json.
        test (str, optional): Another labelled file. If omitted, ``dev`` is also the test file,
            because SQuAD's test file is not public.
        about (str): A short description of the files.
    """

    train: str
    dev: str
    test: str | None = None
    about: str = 'SQuAD'

    def read(self) -> QuestionData:
        return QuestionData(self.about, read_parts(
            self, _squad_questions, lambda path: _trainable(path, _squad_questions(path))))


@dataclass(frozen=True)
class TriviaQa(QuestionSource):
    """TriviaQA's questions, with the Wikipedia or web pages that were retrieved for each question.

    Every occurrence of one of the answer's names in a page counts as an answer (distant
    supervision). In training, pages without an answer are left out. If a file is marked as
    verified, only its verified entries are read. A Wikipedia question is answered from all of its
    pages, and a web question once for each page, as in the official evaluation.

    Args:
        train (str): wikipedia-train.json or web-train.json in the folder ``qa``.
        dev (str): The development file, such as wikipedia-dev.json or verified-wikipedia-dev.json.
        evidence (str): The folder with the folders ``wikipedia`` and ``web``, which contain a text
            file per page.
        test (str, optional): Another file with answers. If omitted, ``dev`` is also the test file.
        max_words (int): Maximum number of words of a page; 4,096 in Longformer's setup.
    """

    train: str
    dev: str
    evidence: str
    test: str | None = None
    max_words: int = 4096

    def __post_init__(self):
        if self.max_words < 1:
            raise ValueError(f"'max_words' must be at least 1 (got {self.max_words})")

    def read(self) -> QuestionData:
        return QuestionData('TriviaQA', read_parts(
            self, self._read, lambda path: _trainable(path, self._read(path, has_answers=True))))

    def _read(self, path: str, has_answers: bool = False) -> list[Question]:
        file = read_file(path, dict)
        is_web = file.get('Domain') == 'Web'
        schema = _TRIVIA['Web' if is_web else 'Wikipedia']
        check_schema(file, schema, path)
        is_verified, questions = file['VerifiedEval'], []
        for row in tqdm(file['Data'], desc=f'reading {Path(path).name}', disable=None):
            if is_verified and not row.get('QuestionPartOfVerifiedEval'):
                continue
            pages = list(self._pages(row, is_web, is_verified))
            names, accepted = _names(row['Answer'])
            texts = [page for _, page in pages]
            asked = [(f'{row["QuestionId"]}--{name}', [page]) for name, page in pages
                     ] if is_web else [(row['QuestionId'], texts)]
            for key, group in asked:
                found = [(page, list(_spans(page, names))) for page in group]
                kept = [(page, spans) for page, spans in found if spans or not has_answers]
                questions.append(Question(
                    key, row['Question'], tuple(page for page, _ in kept),
                    tuple((place, *span) for place, (_, spans) in enumerate(kept)
                          for span in spans), accepted))
        tell_unused(path, number_of('question', len(questions)), file, schema)
        return questions

    def _pages(self, row: dict, is_web: bool, is_verified: bool) -> Iterator[tuple[str, str]]:
        kinds = {'EntityPages': 'wikipedia', **({'SearchResults': 'web'} if is_web else {})}
        for kind, folder in kinds.items():
            for page in row.get(kind, ()):
                if is_verified and is_web and not page.get('DocPartOfVerifiedEval'):
                    continue
                words = self._page(Path(self.evidence) / folder, page['Filename']).split()
                yield page['Filename'], ' '.join(words[:self.max_words])

    @staticmethod
    def _page(folder: Path, name: str) -> str:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"'evidence' must be the folder with all pages (got {name!r:.60}, "
                             f"which is outside of {folder})")
        with readable(f"'evidence' cannot be read: {path}"):
            return read_text(path)


def read_parts(files: Any, read: Callable[[str], Sequence[NamedTuple]],
               learn: Callable[[str], Sequence[NamedTuple]] | None = None) -> dict[str, list]:
    """Return the training, development and test examples of a data set by the name of the part."""
    parts = {'train': list((learn or read)(files.train)), 'dev': list(read(files.dev))}
    parts['test'] = list(read(files.test)) if files.test else parts['dev']
    for path, questions in zip((files.train, files.dev, files.test), parts.values()):
        _check_ids(path, questions)
    return parts


def _squad_questions(path: str) -> Iterator[Question]:
    misplaced, file = [], read_file(path, dict)
    check_schema(file, _SQUAD, path)
    for article in file['data']:
        for paragraph in article['paragraphs']:
            for row in paragraph['qas']:
                question = _squad_question(row, paragraph['context'])
                if question.accepted and not question.spans:
                    misplaced.append(question.id)
                yield question
    tell_unused(path, number_of('article', len(file['data'])), file, _SQUAD)
    if misplaced:
        warnings.warn(f'{path}: {len(misplaced)} questions are excluded from training, because '
                      f'their answers are not at the stated positions: {listed(misplaced)}',
                      stacklevel=2)


def _squad_question(row: dict, context: str) -> Question:
    answers = [] if row.get('is_impossible') else row['answers']
    spans = [(0, begin, begin + len(text)) for text, begin in (
        (answer['text'], answer['answer_start']) for answer in answers)
        if text.strip() and begin >= 0 and context[begin:begin + len(text)] == text]
    return Question(row['id'], row['question'], (context,), tuple(spans[:1]),
                    tuple(answer['text'] for answer in answers))


def _trainable(path: str, questions: Iterable[Question]) -> list[Question]:
    kept = [question for question in questions if question.spans or not question.accepted]
    if not any(question.spans for question in kept):
        raise ValueError(f"{path}: expected a question whose context contains the answer (got "
                         f"none)")
    return kept


def _names(answer: dict) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of an answer that may occur in a text, and the accepted answers in normal
    form."""
    human = answer.get('HumanAnswers', [])
    names = dict.fromkeys([answer['Value'], *answer['Aliases'], *human])
    return [name for name in names if name.strip()], (
        *answer['NormalizedAliases'], *(' '.join(trivia_words(text)) for text in human))


def _spans(text: str, names: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each place in a text where a name stands as whole words, in any
    case."""
    if not names:
        return
    by_length = sorted(names, key=len, reverse=True)
    pattern = '|'.join(re.escape(name) for name in by_length)
    for number, found in enumerate(re.finditer(rf'(?<!\w)(?:{pattern})(?!\w)', text,
                                               re.IGNORECASE)):
        if number == MAX_SPANS:
            return
        yield found.span()


def _check_ids(path: str, questions: Sequence[NamedTuple]) -> None:
    if not questions:
        raise ValueError(f"{path}: expected at least one question (got none)")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise ValueError(f"{path}: expected a different id for each question (got "
                             f"{question.id!r:.60} twice)")
        seen.add(question.id)


def listed(ids: list[str]) -> str:
    more = f' and {len(ids) - MAX_NAMED} more' if len(ids) > MAX_NAMED else ''
    return ', '.join(ids[:MAX_NAMED]) + more


def read_file(path: str, kind: type) -> Any:
    """Read a JSON file that contains an object (``kind=dict``) or an array (``kind=list``)."""
    with readable(f'{path} cannot be read'):
        return json_value(read_text(Path(path), max_bytes=MAX_FILE), path, kind)


def tell_unused(path: str, read: str, value: Any, schema: Any) -> None:
    """Print what was read from a JSON file, and the keys that a schema does not name, if any."""
    if others := unread(_unused(value, schema), (), 'keys'):
        tell(path, read, others)


def _unused(value: Any, schema: Any, place: str = '') -> Iterator[str]:
    if isinstance(schema, list):
        for row in value:
            yield from _unused(row, schema[0], place)
    elif isinstance(schema, dict):
        named = {key.removesuffix('?'): part for key, part in schema.items() if key is not str}
        for name, inner in value.items():
            if name in named:
                yield from _unused(inner, named[name], f'{place}{name}.')
            else:
                yield place + name
