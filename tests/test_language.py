"""Docstrings are sentences that are read once: how they begin, and words that do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A docstring that begins so has no subject, or hides it behind a clause.
FIRST_WORDS = {'What', 'Whether', 'That', 'Where', 'Of', 'How', 'Which', 'Whose', 'Who', 'Than',
               'Those', 'As', 'By'}
PHRASES = ('be had of', 'of whom', 'looked at once', 'for who ')


def docstrings() -> Iterator[tuple[str, str]]:
    for package in ('graphattn', 'experiments', 'analysis'):
        for path in sorted((ROOT / package).rglob('*.py')):
            for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    if text := ast.get_docstring(node):
                        yield f"{path.relative_to(ROOT)} {getattr(node, 'name', '')}", text


def test_docstrings_begin_with_what_they_are_about():
    assert [place for place, text in docstrings() if text.split()[0] in FIRST_WORDS] == []


def test_phrases_that_are_read_twice_do_not_come_back():
    found = re.compile('|'.join(rf'\b{phrase}' for phrase in PHRASES), re.IGNORECASE)
    assert [place for place, text in docstrings() if found.search(' '.join(text.split()))] == []
