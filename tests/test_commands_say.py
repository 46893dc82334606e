"""Messages of all commands, and where they go: rules that the source keeps everywhere."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [path for part in ('analysis', 'experiments', 'graphattn')
           for path in sorted((ROOT / part).rglob('*.py'))]


def calls(name):
    """The calls of a function of this name, each with the file and line."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.Call) and name in (getattr(node.func, 'id', None),
                                                       getattr(node.func, 'attr', None)):
                yield f'{path.relative_to(ROOT)}:{node.lineno}', node


@pytest.mark.slow
def test_progress_bars_are_drawn_on_terminals_alone():
    drawn = [where for where, call in calls('tqdm')
             if not any(option.arg == 'disable' and ast.unparse(option.value).endswith('None')
                        for option in call.keywords)]
    assert drawn == []
