"""A small English corpus for smoke tests of text studies, from installed documentation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from experiments.data.text.corpus import Document, distinct, docstrings, english_sentences
from graphattn.utils.files import new_folder

SOURCES = {
    'torch': (torch, ('nn/modules/*.py', 'optim/*.py')),
    'python': (argparse, ('argparse.py', 'asyncio/*.py', 'concurrent/futures/*.py', 'email/*.py',
                          'inspect.py', 'logging/*.py', 'tarfile.py', 'unittest/*.py'))}


def few_documents() -> Iterator[tuple[str, Document]]:
    """Yield some docstrings of installed packages, each as the name of the package and its
    sentences. No sentence is repeated."""
    return distinct((package, english_sentences(text)) for package, path in _files()
                    for text in docstrings(path))


def write_few_documents(folder: Path) -> None:
    """Write the documents of :func:`few_documents` as a corpus. The folder is complete or
    absent."""
    with new_folder(folder) as temporary:
        text = ''.join('\n'.join(document) + '\n\n' for _, document in few_documents())
        (temporary / 'corpus.txt').write_text(text, encoding='utf-8')


def _files() -> Iterator[tuple[str, Path]]:
    for package, (module, patterns) in SOURCES.items():
        for pattern in patterns:
            for path in sorted(Path(module.__file__).parent.glob(pattern)):
                yield package, path
