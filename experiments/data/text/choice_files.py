"""Multiple-choice questions, read from the files of their publishers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from experiments.data.text.csv_rows import csv_rows
from experiments.data.text.question_files import (
    QuestionData,
    read_file,
    read_parts,
    tell_unused,
)
from experiments.data.what_was_read import number_of, readable
from graphattn.utils.schema import check_schema

NUM_ENDINGS = 4
_WIKI_HOP = [{'id': str, 'query': str, 'answer': str, 'candidates': [str], 'supports': [str],
              str: object}]


class ChoiceQuestion(NamedTuple):
    """A multiple-choice question and its choices."""

    id: str  # unique within its part
    text: str  # the question, or the beginning of a story
    choices: tuple[str, ...]  # the answers, or the continuations of the story
    documents: tuple[str, ...]  # the texts to read for the question; may be empty
    label: int  # index of the right choice


class ChoiceSource(ABC):
    """Base class of data sources that read multiple-choice questions."""

    @abstractmethod
    def read(self) -> QuestionData:
        """Return all multiple-choice questions of the source."""


@dataclass(frozen=True)
class Swag(ChoiceSource):
    """SWAG: questions about how a story continues.

    The files are ``train.csv`` and ``val.csv``, with a header::

        ,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label

    The first sentence is the question. A choice is the beginning of the second sentence (``sent2``)
    and an ending.

    Args:
        train (str): train.csv.
        dev (str): val.csv.
        test (str, optional): Another labelled file. If omitted, ``dev`` is also the test file,
            because SWAG's test file has no labels.
        about (str): A short description of the files.
    """

    train: str
    dev: str
    test: str | None = None
    about: str = 'SWAG'

    def read(self) -> QuestionData:
        return QuestionData(self.about, read_parts(self, _swag_rows))


@dataclass(frozen=True)
class WikiHop(ChoiceSource):
    """WikiHop and MedHop: questions about a relation of an entity, with candidate answers and
    several documents to read.

    The files are::

        [{"id": "WH_train_0", "query": "participant_of juan rossell", "answer": "1996 olympics",
          "candidates": ["1996 olympics", "olympic games"], "supports": ["The 2004 ..."]}]

    Args:
        train (str): train.json.
        dev (str): dev.json.
        test (str, optional): Another file with answers, which the published test file lacks. If
            omitted, ``dev`` is also the test file.
    """

    train: str
    dev: str
    test: str | None = None

    def read(self) -> QuestionData:
        return QuestionData('WikiHop', read_parts(self, _hop_rows))


def _swag_rows(path: str) -> Iterator[ChoiceQuestion]:
    endings = [f'ending{number}' for number in range(NUM_ENDINGS)]
    needed = ['sent1', 'sent2', *endings, 'label']
    with readable(f'{path} cannot be read'):
        for line, row in csv_rows(Path(path), used=needed):
            if missing := [name for name in needed if name not in row]:
                raise ValueError(f"{path}, line 1: expected the column {missing[0]!r} (got "
                                 f"{', '.join(row)})")
            where = f'{path}, line {line}'
            if missing := [name for name in ('sent1', *endings) if not row[name].strip()]:
                raise ValueError(f"{where}: expected a text in the column {missing[0]!r} (got "
                                 f"none); each question must have {NUM_ENDINGS} choices")
            if row['label'] not in map(str, range(NUM_ENDINGS)):
                raise ValueError(f'{where}: expected a label from 0 to {NUM_ENDINGS - 1} (got '
                                 f'{row["label"]!r:.60})')
            yield ChoiceQuestion(
                str(line), row['sent1'],
                tuple(f'{row["sent2"]} {row[name]}'.strip() for name in endings), (),
                int(row['label']))


def _hop_rows(path: str) -> Iterator[ChoiceQuestion]:
    rows = read_file(path, list)
    check_schema(rows, _WIKI_HOP, path)
    for number, row in enumerate(rows):
        where, choices, documents = f'{path}, [{number}]', row['candidates'], row['supports']
        if not documents or not all(text.strip() for text in (*choices, *documents)):
            raise ValueError(f"{where}: expected texts as 'candidates' and 'supports' (got none)")
        if row['answer'] not in choices:
            raise ValueError(f"{where}: expected an answer from 'candidates' (got "
                             f"{row['answer']!r:.60})")
        yield ChoiceQuestion(row['id'], row['query'].replace('_', ' '), tuple(choices),
                             tuple(documents), choices.index(row['answer']))
    tell_unused(path, number_of('question', len(rows)), rows, _WIKI_HOP)
