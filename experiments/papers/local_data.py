"""Data of studies that need no download: documentation of packages, or of a few modules."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from experiments.data.text import corpus
from experiments.data.text.local_glue import build_local_glue
from experiments.data.text.local_questions import build_local_questions
from experiments.data.text.package_docs import build_package_docs
from experiments.papers.study import Study
from graphattn.utils.files import new_folder

MODULES = {
    'torch': (torch, ('nn/modules/*.py', 'optim/*.py')),
    'python': (argparse, ('argparse.py', 'asyncio/*.py', 'concurrent/futures/*.py', 'email/*.py',
                          'inspect.py', 'logging/*.py', 'tarfile.py', 'unittest/*.py'))}


def documentation(study: Study, name: str = 'documentation') -> Path:
    return study.made(name, _write_few if study.scale == 'smoke' else corpus.build_docs)


def package_docs(study: Study) -> Path:
    return study.made('package_docs', lambda folder: build_package_docs(folder, _documents(study)))


def local_questions(study: Study) -> Path:
    """Return questions and choices in the formats of SQuAD, SWAG, WikiHop and TriviaQA."""
    documents = _few() if study.scale == 'smoke' else corpus.distinct(corpus.installed_docstrings())
    return study.made('local_questions', lambda folder: build_local_questions(folder, documents))


def local_glue(study: Study) -> Path:
    """Return tasks in the formats of GLUE, which are not GLUE."""
    sizes = {'num_train': 64, 'num_dev': 32} if study.scale == 'smoke' else {}
    return study.made('local_glue', lambda folder: build_local_glue(
        folder, _documents(study), **sizes))


def _documents(study: Study) -> Iterator[tuple[str, corpus.Document]]:
    return _few() if study.scale == 'smoke' else corpus.distinct(corpus.installed_documents())


def _few() -> Iterator[tuple[str, corpus.Document]]:
    """Yield the names of packages and the sentences of a docstring; none is repeated."""
    return corpus.distinct(
        (package, corpus.english_sentences(text))
        for package, (module, patterns) in MODULES.items() for pattern in patterns
        for path in sorted(Path(module.__file__).parent.glob(pattern))
        for text in corpus.docstrings(path))


def _write_few(folder: Path) -> None:
    with new_folder(folder) as temporary:
        text = ''.join('\n'.join(document) + '\n\n' for _, document in _few())
        (temporary / 'corpus.txt').write_text(text, encoding='utf-8')
