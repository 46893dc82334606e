"""A little English to show that studies of text run: read in a second, and on every machine."""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import email
import inspect
import logging
import pathlib
import tarfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from torch import nn, optim
from torch.optim import lr_scheduler

from experiments.data.text.corpus import Document, english_sentences
from graphattn.utils.files import new_folder

MODULES = {
    'python': (argparse, asyncio, concurrent.futures, email, inspect, logging, pathlib, tarfile,
               unittest),
    'torch': (nn, optim, lr_scheduler)}


def few_documents() -> Iterator[tuple[str, Document]]:
    """Yield the package and the sentences of some of its classes and functions, none twice."""
    seen: set[str] = set()
    for package, modules in MODULES.items():
        for definition in (part for module in modules for part in _definitions(module)):
            document = []
            for text in _docstrings(definition):
                for sentence in english_sentences(text):
                    if sentence not in seen:
                        seen.add(sentence)
                        document.append(sentence)
            if len(document) >= 2:
                yield package, document


def write_few_documents(folder: Path) -> None:
    """Write the documents as a corpus, whole or not at all."""
    with new_folder(folder) as temporary:
        text = ''.join('\n'.join(document) + '\n\n' for _, document in few_documents())
        (temporary / 'corpus.txt').write_text(text, encoding='utf-8')


def _definitions(module: ModuleType) -> Iterator[object]:
    for _, part in inspect.getmembers(module):
        if inspect.isclass(part) or inspect.isfunction(part):
            yield part


def _docstrings(definition: object) -> Iterator[str]:
    methods = vars(definition).values() if inspect.isclass(definition) else ()
    for part in (definition, *methods):
        text = getattr(part, '__doc__', None)
        if isinstance(text, str):
            yield inspect.cleandoc(text)
