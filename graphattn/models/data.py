"""PyG's data as the tokens and sequences of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from graphattn.graphs.pyg_data import ptr_of


def accepts_data(forward: Callable) -> Callable:
    """Decorate ``forward(self, tokens, ptr, ...)`` to accept a PyG ``Data`` or ``Batch`` too."""
    # Its x has the tokens, and each of its graphs is a sequence.
    @wraps(forward)
    def run(self: Any, tokens: Tensor | Data, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tokens, Data | HeteroData):
            return forward(self, tokens, *args, **kwargs)
        if args or 'ptr' in kwargs:
            raise ValueError("'ptr' must be omitted if 'tokens' is a PyG Data or Batch, because "
                             "each graph of the Batch is a sequence")
        return forward(self, *_sequences_of(tokens), **kwargs)

    return run


def _sequences_of(data: Data) -> tuple[Tensor, Tensor]:
    if isinstance(data, HeteroData):
        raise TypeError("'tokens' must be a PyG Data or Batch (got HeteroData); pass the 'x' and "
                        "'ptr' of one node type, or let one type attend to another by the 'memory' "
                        "and 'graph' of GraphAttention, with BipartiteGraph.from_data")
    if data.x is None:
        raise ValueError(f"'tokens' must have the attribute 'x' with ids or features (got {data}); "
                         f"set data.x")
    return data.x, ptr_of(data, data.x.device)
