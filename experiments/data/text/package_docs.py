"""Long documents to classify by the package whose installed documentation they are from."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from experiments.data.text.corpus import Document as Sentences
from experiments.data.text.corpus import distinct, installed_documents
from experiments.data.text.document_files import (
    Collection,
    Document,
    DocumentSource,
    divide,
)
from experiments.data.text.text_table import read_texts
from experiments.data.what_was_read import readable
from graphattn.utils.files import new_folder
from graphattn.utils.reading import read_json
from graphattn.utils.schema import check_schema

MASK = 'package'
SHORT = 5  # number of letters; shorter names, such as pip, occur within other words


@dataclass(frozen=True)
class PackageDocs(DocumentSource):
    """Documents from installed packages, labelled by the name of the package::

        text     Returns the package array of the Fourier coefficients. ...
        label    numpy

    A document is the English text of one module's docstrings. A sentence that occurs in several
    modules is kept only in the first of them. Every package with enough documents is a class, and
    so is the standard library. The documents are divided 8/1/1 by their text.

    The names of all classes are replaced by the word "package" in all documents, so that no
    document contains a label, see :func:`names_pattern`. Replacing only a document's own label
    would leave the names of other classes as a hint.

    Args:
        path (str): A folder that :func:`build_package_docs` wrote. If it is missing, it is written.
        min_words (int): Documents with fewer words are left out.
        min_documents (int): Packages with fewer documents are left out.
        num_classes (int, optional): Number of classes. The packages with the most documents are the
            classes, so that every machine can have the same number. If omitted, all packages are
            classes.
        seed (int): Seed of the division.
    """

    path: str = 'data/cache/package_docs'
    min_words: int = 200
    min_documents: int = 20
    num_classes: int | None = None
    seed: int = 0

    def __post_init__(self):
        for name, least in (('min_words', 1), ('min_documents', 1), ('num_classes', 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"'{name}' must be at least {least} (got {value})")

    def read(self) -> Collection:
        folder = Path(self.path)
        if not folder.exists():
            build_package_docs(folder, distinct(installed_documents()))
        rows = [row for row in read_texts(folder / 'documents.json', ['text'], 'package')
                if len(row.texts[0].split()) >= self.min_words]
        count = Counter(row.label for row in rows)
        packages = sorted((package for package in count if count[package] >= self.min_documents),
                          key=lambda package: (-count[package], package))
        if len(packages) < (self.num_classes or 2):
            raise ValueError(f"'num_classes' must be at most {len(packages)}, the number of "
                             f"packages with {self.min_documents} documents of {self.min_words} "
                             f"words in {folder} (got "
                             f"{self.num_classes or 'none, which needs 2'}); lower 'num_classes', "
                             f"'min_documents' or 'min_words'")
        classes = tuple(sorted(packages[:self.num_classes]))
        label = {package: number for number, package in enumerate(classes)}
        names = _names(folder / 'names.json', classes)
        pattern = names_pattern(name for package in classes for name in names[package])
        return Collection(classes, divide(
            (Document((pattern.sub(MASK, row.texts[0]),), label[row.label])
             for row in rows if row.label in label), self.seed))


def _names(path: Path, packages: tuple[str, ...]) -> dict[str, list[str]]:
    with readable(f"'path' cannot be read: {path}"):
        names = read_json(path)
    check_schema(names, {**{package: [str] for package in packages}, str: object}, str(path))
    return names


def build_package_docs(out: Path, documents: Iterable[tuple[str, Sentences]]) -> None:
    """Write documents and the names of their packages into a folder, complete or not at all."""
    distributions = packages_distributions()
    names = {}
    with new_folder(out) as folder:
        with (folder / 'documents.json').open('w', encoding='utf-8') as file:
            for package, sentences in documents:
                if not package.isidentifier():  # licences do not belong to a package
                    continue
                names[package] = variants([package, *distributions.get(package, [])])
                row = {'package': package, 'text': ' '.join(sentences)}
                file.write(json.dumps(row, ensure_ascii=False) + '\n')
        (folder / 'names.json').write_text(json.dumps(names, indent=2) + '\n')


def variants(names: Iterable[str]) -> list[str]:
    """Return the spellings in which a text may contain the names of packages, in lower case.

    Outer underscores are removed; parts are joined by a blank, a hyphen, an underscore or nothing;
    a trailing number is also left out.

    Example:
        >>> variants(['_pytest', 'PIL', 'jinja2', 'torch_geometric'])
        ['jinja', 'jinja2', 'pil', 'pytest', 'torch geometric', 'torch-geometric', \
'torch_geometric', 'torchgeometric']
    """
    parts = [re.split('[-_.]+', name.lower().strip('_')) for name in names]
    spelled = {between.join(words) for words in parts for between in (' ', '-', '_', '')}
    return sorted(spelled | {name.rstrip('0123456789') for name in spelled} - {''})


def names_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a regular expression that finds names in a text, in any case.

    A name of at least five letters matches any word that contains it, as torch matches PyTorch and
    torchvision. A shorter name matches only whole words and their plurals.

    Example:
        >>> pattern = names_pattern(['torch', 'pip'])
        >>> pattern.sub('package', "PyTorch's pips: torch.nn, torch_geometric and pipelines.")
        "package's package: package.nn, package and pipelines."
    """
    by_length = sorted(set(names), key=lambda name: (-len(name), name))
    long = '|'.join(re.escape(name) for name in by_length if len(name) >= SHORT)
    short = '|'.join(re.escape(name) for name in by_length if len(name) < SHORT)
    found = [rf'\b\w*(?:{long})\w*'] * bool(long) + [rf'\b(?:{short})s?\b'] * bool(short)
    return re.compile('|'.join(found), re.IGNORECASE)
