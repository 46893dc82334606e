"""Help texts without the heavy libraries, because their imports take seconds.

The help of a command is made from this project's signatures and docstrings, without the marks of
reStructuredText. In the meantime, stand-ins replace torch and other heavy libraries. Every
attribute of a stand-in is an empty class.
"""

import io
import re
import sys
from abc import ABCMeta
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

LIBRARIES = ('captum', 'datasets', 'matplotlib', 'networkx', 'numba', 'ortools', 'scipy', 'sklearn',
             'tokenizers', 'torch', 'torch_geometric', 'torchmetrics', 'transformers', 'triton')


_MARKS = re.compile(r'``|(?::[a-z]+)?:`~?([^`<>]*)`')  # ``code`` and :role:`name`


@contextmanager
def without_libraries() -> Iterator[None]:
    """Return a context in which imports of heavy libraries return empty replacements, and what is
    printed has no marks.

    The process should print help and exit.
    """
    finder, printed = _Finder(), io.StringIO()
    sys.meta_path.insert(0, finder)
    try:
        with redirect_stdout(printed):
            yield
    finally:
        print(_MARKS.sub(r'\1', printed.getvalue()), end='')
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _Library):
                del sys.modules[name]


class _Anything(ABCMeta):
    """Metaclass of the class that replaces anything in a library. Its attributes, entries, unions
    and results of calls are the class itself."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith(('__', '_is_protocol')):  # these attributes mark the kind of a class
            raise AttributeError(name)
        return cls

    def __call__(cls, *_, **__) -> type:
        return cls

    def __getitem__(cls, _: object) -> type:
        return cls

    __or__ = __ror__ = __getitem__

    def __enter__(cls) -> type:
        return cls

    def __exit__(cls, *_: object) -> None:
        pass

    def __iter__(cls) -> Iterator[type]:  # without it, __getitem__ would make an iteration endless
        return iter(())


class _StandIn(metaclass=_Anything):
    pass


class _Library(ModuleType):
    __getattr__ = staticmethod(_Anything.__getattr__.__get__(_StandIn))


class _Finder(MetaPathFinder, Loader):

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition('.')[0] in LIBRARIES:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Library(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
