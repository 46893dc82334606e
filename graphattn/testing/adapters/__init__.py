"""Kernels of other libraries, ready to be examined: a page for each.

``python -m graphattn.testing.adapters NAME ...`` examines some, and without names all that run
here. A page imports its library when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.check import check_attention
from graphattn.testing.report import Report
from graphattn.testing.supports import Supports


@dataclass(frozen=True)
class Adapter:
    """Another library's attention in the form that :func:`check_attention` calls."""

    function: Callable[..., Tensor]  # of query, key, value, edges, and terms by name
    package: str
    supports: Supports
    form: str = 'mask'
    layout: str = 'bhnc'
    graphs: Callable[[], Mapping[str, BipartiteGraph]] | None = None
    device: str = 'cpu'
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_installed(self) -> bool:
        try:
            return find_spec(self.package) is not None
        except ModuleNotFoundError:  # the package that it is in is missing
            return False

    def check(self, **options: Any) -> Report:
        graphs = None if self.graphs is None else self.graphs()
        return check_attention(self.function, supports=self.supports, form=self.form,
                               layout=self.layout, graphs=graphs, device=self.device,
                               **{**self.options, **options})


def adapters() -> dict[str, Adapter]:
    pages = [name for _, name, _ in iter_modules(__path__) if name != '__main__']
    return {name: adapter for page in pages for name, adapter in
            import_module(f'{__name__}.{page}').ADAPTERS.items()}


__all__ = ['Adapter', 'adapters']
