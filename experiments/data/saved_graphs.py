"""Loading of saved graphs without pickled code."""

from __future__ import annotations

import torch
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage


def allowing_graphs() -> torch.serialization.safe_globals:
    """Let ``torch.load(path, weights_only=True)`` load a saved ``Data``.

    PyG allows ``Data`` itself, but not the classes that it is made of.
    """
    return torch.serialization.safe_globals([
        BaseStorage, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage])
