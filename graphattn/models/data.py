"""PyG's data as the tokens and sequences of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from graphattn.graphs.pyg_data import ptr_of


def accepts_data(forward: Callable) -> Callable:
    """Let a forward pass over ``tokens`` and ``ptr`` also accept a PyG ``Data`` or ``Batch``
    instead of both: its ``x``, and one sequence for each graph."""
    @wraps(forward)
    def run(self: Any, tokens: Tensor | Data, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tokens, Data | HeteroData):
            return forward(self, tokens, *args, **kwargs)
        if args or 'ptr' in kwargs:
            raise ValueError("'ptr' must be omitted with a PyG Data or Batch, whose graphs are the "
                             "sequences")
        return forward(self, *_sequences_of(tokens), **kwargs)

    return run


def _sequences_of(data: Data) -> tuple[Tensor, Tensor]:
    if isinstance(data, HeteroData):
        raise TypeError("'tokens' must be a Data or a Batch, or the 'x' and 'ptr' of one node type "
                        "(got HeteroData)")
    if data.x is None:
        raise ValueError(f"'tokens' must have an 'x' of ids or features (got {data})")
    return data.x, ptr_of(data, data.x.device)
