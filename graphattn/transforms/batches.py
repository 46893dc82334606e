"""Values that a transform adds to a batch, so that the batch comes apart again."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.data import Data, HeteroData


def check_data(data: Data) -> None:
    if not isinstance(data, Data):
        hint = '; pass data.to_homogeneous()' if isinstance(data, HeteroData) else ''
        raise TypeError(f"'data' must be a PyG Data or a Batch of Data (got "
                        f"{type(data).__name__}){hint}")


def put(data: Data, name: str, values: Tensor, slices: Tensor, shift: Tensor | None = None) -> None:
    """Set ``data[name]``, given the ``slices`` of graphs and by how much their numbers are
    shifted."""
    data[name] = values
    if hasattr(data, '_slice_dict'):  # PyG reads only this when it takes a batch apart
        shift = None if shift is None else shift.cpu()
        # Copies of a batch share the old dicts.
        data._slice_dict = {**data._slice_dict, name: slices.cpu()}
        data._inc_dict = {**data._inc_dict, name: shift}
