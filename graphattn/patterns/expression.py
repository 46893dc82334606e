"""Patterns as text, for config files and command lines."""

from __future__ import annotations

import ast
import operator
import sys
from inspect import isabstract

from graphattn._checks import did_you_mean
from graphattn.graphs.pair_layout import LAYOUTS, PairLayout
from graphattn.patterns.base import Pattern
from graphattn.patterns.presets import PRESETS, get

_OPERATORS = {ast.BitOr: operator.or_, ast.BitAnd: operator.and_, ast.Sub: operator.sub}
_MAX_LEVELS = 100  # patterns print, compare and build by recursion


def parse(expression: str) -> Pattern:
    """Return the pattern that an expression describes; ``parse(repr(pattern)) == pattern``.

    The text is parsed, never evaluated. It may contain patterns, the presets of
    :func:`~graphattn.patterns.get` written as functions, literals, the layout of a mask, ``|``,
    ``&``, ``-`` and parentheses. Custom patterns are known once their module is imported.

    Args:
        expression (str): For instance ``'SlidingWindow(3) | GlobalTokens(2)'`` or
            ``'bigbird(block=16) & Causal()'``.

    Returns:
        Pattern.

    Raises:
        TypeError: ``expression`` is not a str, or a parameter is unknown or of the wrong type.
        ValueError: The text contains anything else, or a name is unknown.

    Example:
        >>> from graphattn import patterns
        >>> patterns.parse('SlidingWindow(3) | GlobalTokens(2)').build(128)
        BipartiteGraph(num_queries=128, num_keys=128, num_edges=1378, density=8.4%)
    """
    if not isinstance(expression, str):
        raise TypeError(f"'expression' must be a str (got {type(expression).__name__})")
    try:
        tree = ast.parse(expression.strip(), mode='eval').body
    except SyntaxError as error:
        raise ValueError(f"'expression' must be an expression of patterns, such as "
                         f"'SlidingWindow(3) | GlobalTokens(2)' (got {_shown(expression)}: "
                         f"{error.msg})") from error
    except (RecursionError, MemoryError):  # Python's parser raises these for deep nesting
        tree = None
    if tree is None or _is_deep(tree):
        raise ValueError(f"'expression' must be nested at most {_MAX_LEVELS} levels deep, counting "
                         f"each operator (got {_shown(expression)})")
    return _read(tree)


def _is_deep(tree: ast.expr) -> bool:
    level = [tree]
    for _ in range(_MAX_LEVELS):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def _read(node: ast.expr) -> Pattern:
    if _is_operation(node):
        return _OPERATORS[type(node.op)](_read(node.left), _read(node.right))
    if isinstance(node, ast.Name):
        return _make(node.id, [], {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _make(node.func.id, *_arguments(node))
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.Attribute):
        name, module = called.attr, sys.modules.get(ast.unparse(called.value))
        if module is not None and not hasattr(module, name):  # misspelt, a pattern or another class
            raise ValueError(f"'expression' must name a class of {module.__name__} (got {name!r})"
                             f"{did_you_mean(name, dir(module)) or ', which has no such class'}")
        raise ValueError(f"'expression' must name patterns without their module (got "
                         f"{ast.unparse(called)}); write {name}, and import the module first, on "
                         f"a command line by --import")
    raise ValueError(f"'expression' must contain only patterns, presets, '|', '&', '-' and "
                     f"parentheses (got {_shown(ast.unparse(node))})")


def _arguments(node: ast.Call) -> tuple[list, dict]:
    positional = [_argument(argument) for argument in node.args]
    named = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in named:
            raise ValueError(f"'expression' must name each parameter only once, without '**' (got "
                             f"{_shown(ast.unparse(node))})")
        named[keyword.arg] = _argument(keyword.value)
    return positional, named


def _argument(node: ast.expr) -> PairLayout | Pattern | object:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if is_call and node.func.id in LAYOUTS:
        positional, named = _arguments(node)
        return LAYOUTS[node.func.id](*positional, **named)
    is_pattern = is_call and node.func.id in {*PRESETS, *_patterns_by_name()}
    if is_pattern or _is_operation(node):
        return _read(node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(f"'expression' must have literal values as arguments, such as 3, True or "
                         f"(0, 5) (got {_shown(ast.unparse(node))})") from None


def _make(name: str, positional: list, named: dict) -> Pattern:
    if name in PRESETS:
        if positional:
            raise TypeError(f"'expression' must name the parameters of the preset {name!r}, as in "
                            f"{name}(parameter=1) (got {positional} without names)")
        return get(name, **named)
    kinds = _patterns_by_name()
    if name not in kinds:
        known = [*PRESETS, *kinds]
        hint = did_you_mean(name, known)
        other = ("; import a pattern of your own first, on a command line by --import; there are "
                 f"{', '.join(map(repr, known))}")
        raise ValueError(f"'expression' names an unknown pattern (got {name!r}){hint or other}")
    return kinds[name](*positional, **named)


def _shown(expression: str) -> str:
    return repr(expression if len(expression) <= 200 else f'{expression[:200]}...')


def _is_operation(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS


def _patterns_by_name(kind: type[Pattern] = Pattern) -> dict[str, type[Pattern]]:
    is_hidden = isabstract(kind) or kind.__name__.startswith('_')
    named = {} if is_hidden else {kind.__name__: kind}
    for derived in kind.__subclasses__():
        named |= _patterns_by_name(derived)
    return named
