"""Patterns written as text, for config files and command lines."""

from __future__ import annotations

import ast
import operator
from difflib import get_close_matches
from inspect import isabstract

from graphattn.pair_mask import LAYOUTS, PairLayout
from graphattn.patterns.base import Pattern
from graphattn.patterns.presets import PRESETS, get

_OPERATORS = {ast.BitOr: operator.or_, ast.BitAnd: operator.and_, ast.Sub: operator.sub}


def parse(expression: str) -> Pattern:
    """The pattern that an expression describes; ``parse(repr(pattern)) == pattern``.

    The text is read, never evaluated: it may hold patterns (those of this package, and yours once
    their module is imported), the presets of :func:`~graphattn.patterns.get` as if they were
    functions, literals, the layout of a mask,
    ``|``, ``&``, ``-`` and parentheses.

    Args:
        expression (str): For instance ``'SlidingWindow(3) | GlobalTokens(2)'`` or
            ``'bigbird(block=16) & Causal()'``.

    Returns:
        Pattern.

    Raises:
        TypeError: ``expression`` is not a str, or a parameter is unknown or of the wrong type.
        ValueError: Something else stands there, or a name is unknown.

    Example:
        >>>         >>> patterns.parse('SlidingWindow(3) | GlobalTokens(2)').build(128)
        BipartiteGraph(num_queries=128, num_keys=128, num_edges=1378, density=8.4%)
    """
    if not isinstance(expression, str):
        raise TypeError(f"'expression' must be a str (got {type(expression).__name__})")
    try:
        tree = ast.parse(expression.strip(), mode='eval').body
    except SyntaxError as error:
        raise ValueError(f"'expression' is not an expression (got {expression!r}: "
                         f"{error.msg})") from error
    return _read(tree)


def _read(node: ast.expr) -> Pattern:
    if _is_operation(node):
        return _OPERATORS[type(node.op)](_read(node.left), _read(node.right))
    if isinstance(node, ast.Name):
        return _make(node.id, [], {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _make(node.func.id, *_arguments(node))
    raise ValueError(f"'expression' may hold patterns, presets, '|', '&', '-' and parentheses (got "
                     f"{ast.unparse(node)!r})")


def _arguments(node: ast.Call) -> tuple[list, dict]:
    positional = [_argument(argument) for argument in node.args]
    return positional, {keyword.arg: _argument(keyword.value) for keyword in node.keywords}


def _argument(node: ast.expr) -> PairLayout | Pattern | object:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if is_call and node.func.id in LAYOUTS:
        positional, named = _arguments(node)
        return LAYOUTS[node.func.id](*positional, **named)
    if is_call and _is_pattern(node.func.id) or _is_operation(node):
        return _read(node)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"'expression' may hold literal arguments only (got "
                         f"{ast.unparse(node)!r})") from None


def _make(name: str, positional: list, named: dict) -> Pattern:
    if name in PRESETS:
        if positional:
            raise TypeError(f"the parameters of {name!r} must be named (got {positional})")
        return get(name, **named)
    kinds = _patterns_by_name()
    if name not in kinds:
        known = [*PRESETS, *kinds]
        near = get_close_matches(name, known, cutoff=0.5) or known
        raise ValueError(f"'expression' names an unknown pattern (got {name!r}); did you mean "
                         f"{' or '.join(map(repr, near))}?")
    return kinds[name](*positional, **named)


def _is_operation(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS


def _is_pattern(name: str) -> bool:
    return name in PRESETS or name in _patterns_by_name()


def _patterns_by_name(kind: type[Pattern] = Pattern) -> dict[str, type[Pattern]]:
    """All that can be built, those of other people's modules included."""
    named = {} if isabstract(kind) else {kind.__name__: kind}
    for derived in kind.__subclasses__():
        named |= _patterns_by_name(derived)
    return named
