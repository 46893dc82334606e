"""Count what makes code heavy, here or in another checkout: ``python -m docs.counts [FOLDER]``."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

MANY = 10  # parameters
# The parameters of compiled loops and of operators' implementations are given.
DECORATORS = {'in_threads', 'jit', 'jit_inline', 'kernel', 'intrinsic', 'register_kernel'}


def counts(root: Path) -> dict[str, int]:
    """Return the figures of a checkout."""
    trees = trees_of(root)
    names = [name for _, name in with_many_parameters(trees)]
    lines = {folder: sum(len(path.read_text().splitlines())
                         for path in root.glob(f'{folder}/**/*.py'))
             for folder in ('graphattn', 'experiments', 'analysis', 'tests')}
    return {**{f'lines of {folder}': number for folder, number in lines.items()},
            'modules of graphattn': len(trees),
            'packages and modules at its top': len({unit for unit, _ in arrows(root, trees)}),
            'arrows between these': len({(unit, other) for unit, other in arrows(root, trees)
                                         if other not in ('', unit)}),
            f'functions of more than {MANY} parameters':
                len(names) - names.count('__init__'),
            f'constructors of more than {MANY} parameters': names.count('__init__')}


def trees_of(root: Path) -> dict[Path, ast.AST]:
    """Return the parsed files of graphattn."""
    return {path: ast.parse(path.read_text()) for path in sorted(root.glob('graphattn/**/*.py'))}


def with_many_parameters(trees: dict[Path, ast.AST]) -> list[tuple[str, str]]:
    """Return the module and the name of each function with more than MANY parameters."""
    return [(path.stem, node.name) for path, tree in trees.items() for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and num_parameters(node) > MANY
            and not DECORATORS & set(map(name_of, node.decorator_list))]


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


class Documented(NamedTuple):
    """A class, function or method of graphattn."""

    path: Path
    name: str  # with the names around it
    kind: str  # 'public' if it is on the pages of docs/reference.md, else 'private' or 'internal'
    is_function: bool
    lines: int  # of its docstring, 0 if it has none


def documented(root: Path) -> list[Documented]:
    public = names_on_pages(root)
    return [each for path in sorted(root.glob('graphattn/**/*.py'))
            for each in _documented_in(path, ast.parse(path.read_text()), (), public)]


def names_on_pages(root: Path) -> set[tuple[str, str]]:
    """Return the module and name of each object on the pages of docs/reference.md."""
    listed = re.findall(r'^   ([\w.]+)$', (root / 'docs/reference.md').read_text(), re.MULTILINE)
    found = set()
    for name in listed:
        try:
            module = import_module(name)
            names = getattr(module, '__all__', [name for name in vars(module) if name[0] != '_'])
        except ModuleNotFoundError:  # a name in a module
            module, names = import_module(name.rpartition('.')[0]), [name.rpartition('.')[2]]
        for value in (getattr(module, name) for name in names):
            members = [x for base in value.__mro__ for x in vars(base).values()] if isinstance(
                value, type) else []
            for each in (value, *members):  # methods may be functions of other modules
                each = getattr(each, '__func__', getattr(each, 'fget', each))
                found.add((getattr(each, '__module__', ''), getattr(each, '__qualname__', '')))
    return found


def _documented_in(path: Path, tree: ast.AST, around: tuple[str, ...],
                   public: set[tuple[str, str]]) -> Iterator[Documented]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _documented_in(path, node, around, public)
            continue
        names = (*around, node.name)
        module = '.'.join(('graphattn', *path.with_suffix('').parts[
            path.parts.index('graphattn') + 1:])).removesuffix('.__init__')
        has_underscore = any(name[0] == '_' and not name.endswith('__') for name in names)
        is_public = (module, names[0]) in public and not has_underscore
        kind = 'public' if is_public else 'private' if has_underscore else 'internal'
        yield Documented(path, '.'.join(names), kind, isinstance(node, ast.FunctionDef),
                         len((ast.get_docstring(node) or '').splitlines()))
        yield from _documented_in(path, node, names, public)


def docstring_counts(root: Path) -> dict[str, float]:
    """Return figures of docstrings: lines of all, the share of private functions that have one,
    and mean lines of those that have one."""
    each = documented(root)

    def mean(kind: str) -> float:
        lines = [x.lines for x in each if x.kind == kind and x.lines]
        return sum(lines) / len(lines)

    private = [x.lines > 0 for x in each if x.kind == 'private' and x.is_function]
    return {'lines of docstrings': sum(x.lines for x in each),
            'private functions with one': sum(private) / len(private),
            'mean lines, private': mean('private'), 'mean lines, internal': mean('internal'),
            'mean lines, public': mean('public')}


if __name__ == '__main__':
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    for what, number in (counts(root) | docstring_counts(root)).items():
        print(f'{number:>7,.{2 * isinstance(number, float)}f}  {what}')
