"""Work that libraries repeat and no test needs."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
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

    @cache
    def visible(function: FunctionType) -> list[ModuleType]:
        return [value for value in function.__globals__.values()
                if inspect.ismodule(value) and value in (language, language.core)]

    def patch_once(function: FunctionType) -> object:
        modules = visible(function)
        is_patched = modules and not any(language.core.is_builtin(module.load)
                                         for module in modules)
        return interpreter._LangPatchScope() if is_patched else patch(function)

    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = _cached_by_name(interpreter._get_np_dtype)
    _remember_shapes(language.core)
    # Sums and products of integers would also be taken in 64 bits, for an assertion that is off.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _cached_by_name(dtype_of: Callable) -> Callable:
    """Triton's interpreter builds a table of dtypes whenever it looks one up."""
    dtypes = {}

    def cached(kind: object) -> object:
        scalar = kind.scalar
        if scalar.name not in dtypes:
            dtypes[scalar.name] = dtype_of(scalar)
        return dtypes[scalar.name]

    return cached


def _remember_shapes(core: ModuleType) -> None:
    """Triton checks and names the shape of each tensor anew, a third of the interpreter's time."""
    first_type, first_tensor = core.block_type.__init__, core.tensor.__init__
    equal, types, shapes = core.tuple.__eq__, {}, {}

    def new_type(self, element_ty, shape) -> None:
        # What is remembered holds the type of the elements, so that no other has its number.
        key = id(element_ty), *[getattr(size, 'value', size) for size in shape]
        if key not in types:
            first_type(self, element_ty, shape)
            types[key] = dict(vars(self))
        vars(self).update(types[key])

    def new_tensor(self, handle, type) -> None:
        sizes = (*type.shape,) if type.is_block() else ()
        if sizes not in shapes:
            first_tensor(self, handle, type)
            shapes[sizes] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[sizes]

    def are_equal(self, other) -> object:
        is_list = type(other) is list
        return core.constexpr(self.values == other) if is_list else equal(self, other)

    core.block_type.__init__, core.tensor.__init__ = new_type, new_tensor
    core.tuple.__eq__ = are_equal
