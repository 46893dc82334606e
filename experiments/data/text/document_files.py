"""Collections of labelled documents, read from the files of their publishers."""

import html
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from experiments.data.labels import PARTS
from experiments.data.what_was_read import listed, number_of, readable, tell, unread
from graphattn.utils.reading import read_json, read_text
from graphattn.utils.schema import check_schema

EIGHT_ONE_ONE = (0.8, 0.1, 0.1)
NINE_ONE = (0.9, 0.1)


class Document(NamedTuple):
    """A text, or a pair of texts, to classify, and the index of its class, or its score."""

    texts: tuple[str, ...]
    label: int | float


class Collection(NamedTuple):
    """The classes of documents, and the documents of ``train``, ``dev`` and ``test``."""

    classes: tuple[str, ...]
    parts: dict[str, list[Document]]


class DocumentSource(ABC):
    """Base class of sources. A source reads the documents of a classification task."""

    columns: list[str] | None = None  # the text columns of a table of unlabelled documents

    @abstractmethod
    def read(self) -> Collection:
        """Return all documents of the source and their classes."""


@dataclass(frozen=True)
class Hyperpartisan(DocumentSource):
    """SemEval-2019 task 4, by article: news articles that are extremely one-sided, or are not.

    The files are::

        <article id="0000001" title="..."><p>It is time.</p></article>
        <article id="0000001" hyperpartisan="true" ... />               in the file of labels

    The text of an article is its body, without the title, URLs, and repeated blanks. Longformer's
    split is not clean: 51 of its 65 test articles are also in its training part. It is used
    unchanged, with a warning. Without ``splits``, the articles are divided 8/1/1 by their text
    (:func:`part_of`), so that no text is in two parts.

    A document type declaration is an error. Entities can be declared only there, so no entity
    expands and no other file is read.

    Args:
        articles (str): articles-training-byarticle-20181122.xml.
        labels (str): ground-truth-training-byarticle-20181122.xml.
        splits (str, optional): A JSON file of ids, ``{"train": [1, 7], "dev": [3], "test": [4]}``,
            such as Longformer's hp-splits.json.
        seed (int): Seed of the split if ``splits`` is omitted.
    """

    articles: str
    labels: str
    splits: str | None = None
    seed: int = 0

    def read(self) -> Collection:
        truth = {number: _truth(article) for number, article in
                 _read_articles(self.labels, 'hyperpartisan').items()}
        documents = {}
        for number, article in _read_articles(self.articles).items():
            if number not in truth:
                raise ValueError(f"{article.where}: expected a label in {self.labels} (got none)")
            text = _WEB_ADDRESS.sub(' ', html.unescape(article.text))
            documents[number] = Document((_checked_text(text, article.where),), truth[number])
        without = sorted(truth.keys() - documents.keys())
        if without:
            raise ValueError(f"{self.labels}: expected labels only for articles in {self.articles} "
                             f"(got article {without[0]}, which is missing there)")
        classes = ('not hyperpartisan', 'hyperpartisan')
        if self.splits is None:
            return Collection(classes, divide(documents.values(), self.seed))
        split = _read_split(Path(self.splits), documents.keys())
        return Collection(classes, {part: [documents[number] for number in split[part]]
                                    for part in PARTS})


@dataclass(frozen=True)
class TextFolders(DocumentSource):
    """Texts in folders: each class has a folder, as in aclImdb and 20news-bydate::

        train/pos/0_9.txt        train/neg/0_3.txt        test/pos/0_10.txt        test/neg/0_2.txt

    HTML line breaks become blanks. A tenth of the training texts, chosen by their text, is for
    development.

    Args:
        path (str): The folder with the folders ``train`` and ``test``.
        train (str): The name of the folder with training texts.
        test (str): The name of the folder with test texts.
        classes (list of str, optional): The folders of the classes in order. If omitted, all
            folders, sorted by name.
        encoding (str): The encoding of the files.
        strip_headers (bool): Whether to leave out everything before the first blank line, such as
            sender and subject. The papers do not say whether they leave out the headers of 20
            Newsgroups; with headers the task is easier. Messages without a body are skipped and
            counted.
        seed (int): Seed of the division.
    """

    path: str
    train: str = 'train'
    test: str = 'test'
    classes: list[str] | None = None
    encoding: str = 'utf-8'
    strip_headers: bool = False
    seed: int = 0

    def read(self) -> Collection:
        train, test = (Path(self.path) / name for name in (self.train, self.test))
        classes = tuple(self.classes or _folders(train))
        if unknown := () if self.classes else sorted(set(_folders(test)) - {*classes}):
            raise ValueError(f"{test / unknown[0]}: expected only classes of {train} (got a class "
                             f"that is missing there)")
        learn, test = (list(self._read_part(folder, classes)) for folder in (train, test))
        return Collection(classes, {**divide(learn, self.seed, NINE_ONE), 'test': test})

    def _read_part(self, folder: Path, classes: tuple[str, ...]) -> Iterator[Document]:
        num_headers_only = 0
        for label, name in enumerate(classes):
            for file in document_paths(folder / name):
                text = read_text(file, self.encoding).replace('<br />', ' ')
                text = _checked_text(text, str(file))
                if self.strip_headers:
                    text = text.partition('\n\n')[2].strip()
                if text:
                    yield Document((text,), label)
                num_headers_only += not text
        if num_headers_only:
            print(f'{folder}: skipped {num_headers_only} messages that have only headers')


def part_of(text: str, seed: int = 0, shares: tuple[float, ...] = EIGHT_ONE_ONE) -> str:
    """Return the part that a document belongs to, which depends only on its text, without case and
    blanks, and on the seed, so that equal texts belong to the same part."""
    key = f'{seed} {" ".join(text.lower().split())}'.encode()
    number = int.from_bytes(blake2b(key, digest_size=8).digest()) / 2**64
    return PARTS[min(int(np.searchsorted(np.cumsum(shares), number, side='right')),
                     len(shares) - 1)]


def divide(documents: Iterable[Document], seed: int,
           shares: tuple[float, ...] = EIGHT_ONE_ONE) -> dict[str, list[Document]]:
    """Return the documents of each part, as :func:`part_of` divides them, in their order."""
    parts: dict[str, list[Document]] = {part: [] for part in PARTS[:len(shares)]}
    for document in documents:
        parts[part_of(document.texts[0], seed, shares)].append(document)
    return parts


class _Article(NamedTuple):
    attributes: dict[str, str]
    text: str
    where: str


_WEB_ADDRESS = re.compile(r'(https?://|www\.)\S+')


class _WithoutDeclarations(ElementTree.TreeBuilder):
    def doctype(self, *_: str | None) -> None:
        raise ValueError('document type declarations are not allowed, because they can declare '
                         'entities')


def _read_articles(path: str, *used: str) -> dict[int, _Article]:
    """Return the articles of a file by their ids, and print its attributes that are neither ids nor
    ``used``."""
    parser = ElementTree.XMLParser(target=_WithoutDeclarations(), encoding='utf-8')
    try:
        root = ElementTree.parse(path, parser).getroot()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); unpack the archive, and pass "
                         f"the XML file inside") from error
    except ElementTree.ParseError as error:
        raise ValueError(f'{path}, line {error.position[0]}: not well-formed XML in UTF-8 '
                         f'({error})') from error
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error
    articles: dict[int, _Article] = {}
    for element in root:
        where = f'{path}, article {element.get("id", "without id")!s:.60}'
        if element.tag != 'article' or element.find('.//article') is not None:
            raise ValueError(f'{where}: expected articles around all other elements, and none in '
                             f'another (got the element {element.tag!r})')
        if not re.fullmatch('[0-9]{1,9}', element.get('id', '')):
            raise ValueError(f"{where}: expected an 'id' of digits (got {element.get('id')!r:.60})")
        for paragraph in element.iter('p'):
            paragraph.text = f' {paragraph.text or ""}'
        article = _Article(element.attrib, ''.join(element.itertext()), where)
        beside = ''.join([root.text or '', element.tail or '', article.text if used else ''])
        if beside.strip() or used and len(element):
            raise ValueError(f'{where}: expected texts only in articles, and neither texts nor '
                             f'elements beside labels (got {ElementTree.tostring(element)!r:.60})')
        if articles.setdefault(int(element.get('id')), article) is not article:
            raise ValueError(f'{where} is repeated')
    if not articles:
        raise ValueError(f"{path}: expected at least one article (got none)")
    names = [f'{element.tag}.{key}' for element in root.iter() for key in element.attrib]
    if others := unread(names, [f'article.{key}' for key in ('id', *used)], 'attributes'):
        tell(path, number_of('article', len(articles)), others)
    return articles


def _truth(article: _Article) -> int:
    label = article.attributes.get('hyperpartisan')
    if label not in ('false', 'true'):
        raise ValueError(f"{article.where}: expected hyperpartisan=\"true\" or \"false\" (got "
                         f"{label!r:.60})")
    return int(label == 'true')


def _read_split(path: Path, known: Iterable[int]) -> dict[str, list[int]]:
    with readable(f"'splits' cannot be read: {path}"):
        split = read_json(path)
    check_schema(split, dict.fromkeys(PARTS, [(range(10**9), re.compile('[0-9]{1,9}'))]), str(path))
    split = {part: list(map(int, split[part])) for part in PARTS}
    ids = {part: set(numbers) for part, numbers in split.items()}
    unknown = sorted(set().union(*ids.values()).difference(known))
    if unknown:
        raise ValueError(f"{path}: expected ids of articles in the data (got {unknown[0]}, which "
                         f"is missing)")
    leaks = [f'{len(shared)} of the {len(split[later])} ids of {later} are in {earlier}'
             for later, earlier in (('test', 'train'), ('test', 'dev'), ('dev', 'train'))
             if (shared := [number for number in split[later] if number in ids[earlier]])]
    if leaks:
        warnings.warn(f"{path}: parts share articles: {', '.join(leaks)}; omit 'splits' to divide "
                      f"the articles without such overlaps", stacklevel=3)
    return split


def _folders(path: Path) -> tuple[str, ...]:
    entries = sorted(path.iterdir()) if path.is_dir() else []
    entries = [entry for entry in entries if not entry.name.startswith('.')]
    if not entries:
        raise ValueError(f"'path' must contain the folder {path.name}, with one folder for each "
                         f"class (got {path.parent}, without this folder)")
    for entry in entries:
        if not entry.is_dir():
            raise ValueError(f'{entry}: expected only folders, one for each class (got a file)')
    return tuple(entry.name for entry in entries)


def document_paths(folder: Path, *suffixes: str) -> list[Path]:
    """Return the documents in a folder with one of the ``suffixes``, and print what is left out."""
    files, left_out = listed(folder, suffixes)
    if not files:
        raise ValueError(f"{folder}: expected a folder of documents (got no files named "
                         f"{', '.join(suffixes) or 'anything'}); unpack the archive first")
    if left_out:
        tell(folder, number_of('document', len(files)), left_out)
    return files


def _checked_text(text: str, where: str) -> str:
    if not text.strip():
        raise ValueError(f"{where}: expected a text (got an empty document); remove this document")
    return text.strip()
