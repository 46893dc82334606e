"""Loading of saved graphs, without running pickled code."""

from __future__ import annotations

import torch
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage


def allowing_graphs() -> torch.serialization.safe_globals:
    """Return a context in which ``torch.load(path, weights_only=True)`` can load a saved ``Data``.

    PyG allows ``Data`` itself, but not the classes of the objects inside it.
    """
    return torch.serialization.safe_globals([
        BaseStorage, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage])
