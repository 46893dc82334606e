"""Docstrings are sentences that are read once: how they begin, and words that do not come back."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A docstring that begins so has no subject, or hides it behind a clause.
FIRST_WORDS = {'What', 'Whether', 'That', 'Where', 'Of', 'How', 'Which', 'Whose', 'Who', 'Than',
               'Those', 'As', 'By'}
PHRASES = ('be had of', 'of whom', 'looked at once', 'for who ')
# Parts of graphattn whose docstrings, comments and errors have none of the phrases of ``GONE``.
CLEAN = ('graphs', 'patterns', 'samplers', 'ops', 'functional', 'testing', 'utils', 'extension',
         '_*.py', 'compile.py', 'draw.py', 'freed_memory.py', 'shard.py', 'style.py')
GONE = ('of which', 'of whom', 'of whose', 'by which', 'for who', 'who', 'nobody', 'anybody',
        'waited for', 'looked at', 'looks at', 'be had', 'stands for', 'anew', 'without end',
        'told', 'own a graph', 'owns a graph', 'without numbers')


def docstrings() -> Iterator[tuple[str, str]]:
    for package in ('graphattn', 'experiments', 'analysis'):
        for path in sorted((ROOT / package).rglob('*.py')):
            for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    if text := ast.get_docstring(node):
                        yield f"{path.relative_to(ROOT)} {getattr(node, 'name', '')}", text


def test_docstrings_begin_with_what_they_are_about():
    assert [place for place, text in docstrings() if text.split()[0] in FIRST_WORDS] == []


@pytest.mark.parametrize('phrase', PHRASES)
def test_phrases_that_are_read_twice_do_not_come_back(phrase):
    found = re.compile(rf'\b{phrase}', re.IGNORECASE)
    assert [place for place, text in docstrings() if found.search(' '.join(text.split()))] == []


def prose(path: Path) -> str:
    """Return the comments and strings of a file, each line joined to the next."""
    with path.open('rb') as file:
        parts = [token.string for token in tokenize.tokenize(file.readline)
                 if tokenize.tok_name[token.type] in ('COMMENT', 'STRING', 'FSTRING_MIDDLE')]
    return ' '.join(' '.join(parts).replace('#', ' ').split())


@pytest.mark.parametrize('part', CLEAN)
def test_clean_parts_stay_clean(part):
    folder = ROOT / 'graphattn'
    paths = [*folder.glob(part)] if '.py' in part else [*(folder / part).rglob('*.py')]
    found = re.compile(rf"\b({'|'.join(GONE)})\b")
    assert paths
    assert [(path.name, hit[0]) for path in paths if (hit := found.search(prose(path)))] == []
