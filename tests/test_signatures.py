"""What travels together is one value, or the options of the layer below: at most ten parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / 'graphattn'
MOST = 10
# Loops and kernels take arrays one by one, and operators tensors.
COMPILED = re.compile(r'(\w+\.)*(jit|jit_inline|in_threads|kernel|register_kernel)\b')
# Calls that would be worse with fewer.
EXCEPTIONS = {
    'GraphAttention.forward': 'tensors and choices of one call, few of which are given at a time',
    'GraphGPSConv.__init__': "the signature of PyG's layer",
    'MultiheadAttention.__init__': "the signature of torch's layer",
    'edge_attention': 'independent terms of a formula',
    'pair_attention': 'independent terms of a formula',
}


def counts(node: ast.AST, prefix: str = '') -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from counts(child, prefix)
            continue
        if not isinstance(child, ast.ClassDef) and not any(
                COMPILED.match(ast.unparse(each)) for each in child.decorator_list):
            given = child.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            yield prefix + child.name, len(names) - (names[:1] in (['self'], ['cls'], ['ctx']))
        yield from counts(child, f'{prefix}{child.name}.')


@pytest.mark.slow
def test_functions_have_few_parameters():
    found = {name for path in FOLDER.rglob('*.py')
             for name, count in counts(ast.parse(path.read_text())) if count > MOST}
    assert found == EXCEPTIONS.keys()
