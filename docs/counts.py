"""Count what makes code heavy, here or in another checkout: ``python -m docs.counts [FOLDER]``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MANY = 10  # parameters
# The parameters of compiled loops and of operators' implementations, fake ones too, are given.
DECORATORS = {'in_threads', 'jit', 'jit_inline', 'kernel', 'intrinsic', 'register_kernel',
              'register_fake'}


def counts(root: Path) -> dict[str, int]:
    """Return the figures of a checkout."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(root.glob('graphattn/**/*.py'))}
    functions = [node for tree in trees.values() for node in ast.walk(tree)
                 if isinstance(node, ast.FunctionDef) and num_parameters(node) > MANY
                 and not DECORATORS & set(map(name_of, node.decorator_list))
                 and not node.name.startswith('_fake')]
    lines = {folder: sum(len(path.read_text().splitlines())
                         for path in root.glob(f'{folder}/**/*.py'))
             for folder in ('graphattn', 'experiments', 'analysis', 'tests')}
    return {**{f'lines of {folder}': number for folder, number in lines.items()},
            'modules of graphattn': len(trees),
            'packages and modules at its top': len({unit for unit, _ in arrows(root, trees)}),
            'arrows between these': len({(unit, other) for unit, other in arrows(root, trees)
                                         if other not in ('', unit)}),
            f'functions of more than {MANY} parameters':
                sum(node.name != '__init__' for node in functions),
            f'constructors of more than {MANY} parameters':
                sum(node.name == '__init__' for node in functions)}


def arrows(root: Path, trees: dict[Path, ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the top-level package or module of each file, paired with each top-level package or
    module that it imports, and with ``''``."""
    for path, tree in trees.items():
        unit = path.relative_to(root / 'graphattn').with_suffix('').parts[0]
        yield unit, ''
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('graphattn'):
                _, _, rest = node.module.partition('.')
                names = [rest] if rest else [alias.name for alias in node.names]
                yield from ((unit, name.split('.')[0]) for name in names)
            elif isinstance(node, ast.Import):
                yield from ((unit, alias.name.split('.')[1]) for alias in node.names
                            if alias.name.startswith('graphattn.'))


def num_parameters(function: ast.FunctionDef) -> int:
    """Return the number of parameters, without those that Python fills in."""
    each = function.args
    named = [arg.arg for arg in (*each.posonlyargs, *each.args, *each.kwonlyargs)]
    return len([name for name in named if name not in ('self', 'cls', 'ctx')])


def name_of(decorator: ast.expr) -> str:
    """Return the last part of a name."""
    if isinstance(decorator, ast.Call):
        return name_of(decorator.func)
    return decorator.attr if isinstance(decorator, ast.Attribute) else decorator.id


if __name__ == '__main__':
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    for what, number in counts(root).items():
        print(f'{number:>7,}  {what}')
