"""Calls with wrong arguments, and calls by torch.jit: errors that name what to do. Inside a call,
each tensor is copied to the host at most once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Any

import torch

from graphattn._checks import did_you_mean
from graphattn._tensors import THREAD

_OF_LIBRARIES = 'graphattn.', 'torch_geometric.'  # which pass ``**kwargs`` on as they are


class Explained:
    """Base class of what users construct and call."""

    # costs normal calls less than a microsecond
    __slots__ = ()
    # The functions and classes that get ``**kwargs`` of the constructor, each from the one before,
    # if the base class does not get them.
    _options_of: tuple[Callable, ...] = ()

    def __new__(cls, *args: Any, **kwargs: Any):
        # Not in a metaclass, whose signature would replace that of __init__.
        if kwargs:
            accepted = parameters_of(cls)
            for name in kwargs if accepted is not None else ():
                if name not in accepted:
                    raise TypeError(_unknown(name, cls.__name__, accepted))
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if 'forward' in vars(cls):
            cls.forward = _explained(cls.forward)

    def __prepare_scriptable__(self):
        """Refuse ``torch.jit.script``, which calls this method first."""
        raise _not_by_jit(self)


@cache
def parameters_of(cls: type) -> dict[str, Parameter] | None:
    """Return all parameters of a constructor by name, also those that ``**kwargs`` pass on; None if
    any name is accepted."""
    found = {}
    for function in _constructors(cls):
        parameters = signature(function).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        found |= {name: parameter for name, parameter in parameters.items()
                  if name not in ('self', *found)
                  and parameter.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)}
        if Parameter.VAR_KEYWORD not in kinds:
            return found
        if not getattr(function, '__module__', '').startswith(_OF_LIBRARIES):
            return None
    return found


def check_override(cls: type, method: Callable, *keywords: str) -> None:
    """Raise an error if a class has a method of this name that cannot be called as ``method``."""
    name, own = method.__name__, vars(cls).get(method.__name__)
    needed = [parameter.name for parameter in signature(method).parameters.values()
              if parameter.kind == Parameter.POSITIONAL_OR_KEYWORD]
    try:
        if own is not None:
            signature(own).bind(*needed, **dict.fromkeys(keywords))
    except TypeError:
        wanted = ', '.join([*needed, *(f'{keyword}=None' for keyword in keywords)])
        raise TypeError(f"'{cls.__name__}.{name}' must be {name}({wanted}) "
                        f"(got {name}({', '.join(signature(own).parameters)}))") from None


def _constructors(cls: type) -> Iterator[Callable]:
    # each gets the ``**kwargs`` of the one before
    for base in cls.__mro__:
        if '__init__' in vars(base):
            yield vars(base)['__init__']
        if '_options_of' in vars(base):
            for target in base._options_of:
                yield from _constructors(target) if isinstance(target, type) else (target,)
            return


def _explained(forward: Callable) -> Callable:
    @wraps(forward)
    def run(self, *args: Any, **kwargs: Any):
        if torch.compiler.is_compiling():
            return forward(self, *args, **kwargs)
        if torch._C._get_tracing_state() is not None:
            raise _not_by_jit(self)
        is_outermost = THREAD.host_copies is None  # as in cache_host_copies
        THREAD.host_copies = {} if is_outermost else THREAD.host_copies
        try:
            return forward(self, *args, **kwargs)
        except TypeError as error:
            if str(error).startswith(f'{forward.__qualname__}()'):  # it was not even called
                _check_call(type(self).__name__, forward, args, kwargs)
            raise
        finally:
            THREAD.host_copies = None if is_outermost else THREAD.host_copies
    return run


def _not_by_jit(module: object) -> NotImplementedError:
    return NotImplementedError(
        f"torch.jit cannot compile {type(module).__name__}, because a trace would repeat the edges "
        f"of one call; use torch.compile, or torch.export.export with a pattern or a graph")


def _check_call(name: str, forward: Callable, args: tuple, kwargs: dict) -> None:
    _, *parameters = signature(forward).parameters.values()
    if not any(parameter.kind == Parameter.VAR_KEYWORD for parameter in parameters):
        accepted = [parameter.name for parameter in parameters]
        for keyword in kwargs:
            if keyword not in accepted:
                raise TypeError(_unknown(keyword, name, accepted)) from None
    required = [parameter.name for parameter in parameters
                if parameter.default is Parameter.empty
                and parameter.kind == Parameter.POSITIONAL_OR_KEYWORD]
    missing = [each for each in required[len(args):] if each not in kwargs]
    if missing:
        raise TypeError(f"'{missing[0]}' must be given to {name}{_advice(args, required)}"
                        ) from None


def _advice(args: tuple, required: list[str]) -> str:
    data = args[0] if args else None
    if hasattr(data, 'stores') and all(name in data for name in required):  # PyG's Data
        parts = ', '.join(f'data.{name}' for name in required)
        return f" (got a {type(data).__name__}); pass {parts}"
    if 'ptr' in required:
        return ("; pass batch.ptr of a PyG Batch, or torch.tensor([0, num_tokens]) for one "
                "sequence")
    return f", which needs {', '.join(map(repr, required))}"


def _unknown(name: str, of: str, accepted: Iterable[str]) -> str:
    listed = ', '.join(map(repr, accepted)) or 'no argument'
    return (f"'{name}' is not an argument of {of}, which accepts {listed}"
            f"{did_you_mean(name, accepted)}")
