"""Work that libraries repeat and no test needs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType


def spare() -> None:
    """Leaves it out of those libraries that are loaded."""
    if guards := sys.modules.get('torch._dynamo.guards'):
        # To time the guards of what it compiles, torch empties the caches of all cores for 20 ms.
        guards.profile_guard_manager = lambda *args: 0.
    if interpreter := sys.modules.get('triton.runtime.interpreter'):
        _patch_once(interpreter)


def _patch_once(interpreter: ModuleType) -> None:
    """Triton's interpreter replaces the functions of its language, a thousand members to look
    through, whenever a kernel calls a function. Where they are replaced it need not."""
    patch, language = interpreter._patch_lang, interpreter.tl
    if patch.__module__ == __name__:
        return

    def patch_once(function: FunctionType) -> object:
        visible = [value for value in function.__globals__.values()
                   if inspect.ismodule(value) and value in (language, language.core)]
        is_patched = visible and not any(language.core.is_builtin(module.load)
                                         for module in visible)
        return interpreter._LangPatchScope() if is_patched else patch(function)

    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = _cached_by_name(interpreter._get_np_dtype)


def _cached_by_name(dtype_of: Callable) -> Callable:
    """Triton's interpreter builds a table of dtypes whenever it looks one up."""
    dtypes = {}

    def cached(kind: object) -> object:
        scalar = kind.scalar
        if scalar.name not in dtypes:
            dtypes[scalar.name] = dtype_of(scalar)
        return dtypes[scalar.name]

    return cached
