"""Draw the signs of eigenvectors at random."""

from __future__ import annotations

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from graphattn._explained import Explained
from graphattn.graphs.pyg_data import ptr_of
from graphattn.transforms.add_attention_edges import check_data, put


class RandomSignFlip(BaseTransform, Explained):
    """Multiply each column of the encoding of a graph by 1 or -1 at random.

    The sign of an eigenvector is arbitrary, so a model should be trained with random signs. Use
    :class:`LaplacianPE` as the ``pre_transform`` of a dataset, whose result PyG stores, and this
    class as the ``transform`` of the training split. New signs are then drawn each time that a
    graph is loaded. In a ``Batch``, each graph gets its own signs. Signs are drawn by torch's
    global generator, as in PyG's random transforms.

    Args:
        attr_name (str): Name of the encoding.

    Raises:
        TypeError: The data is heterogeneous.
        ValueError: A graph has no attribute ``attr_name``.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from graphattn.transforms import RandomSignFlip
        >>> data = Data(laplacian_eigenvector_pe=torch.tensor([[1., 2.], [3., 4.]]))
        >>> RandomSignFlip()(data).laplacian_eigenvector_pe.abs()
        tensor([[1., 2.],
                [3., 4.]])

    Source: Dwivedi et al., "Benchmarking Graph Neural Networks" (2020), Sec. 2.
    """

    def __init__(self, attr_name: str = 'laplacian_eigenvector_pe'):
        self.attr_name = attr_name

    def forward(self, data: Data) -> Data:
        check_data(data)
        if self.attr_name not in data:
            raise ValueError(f"'data' must have the attribute '{self.attr_name}' (got {data}); "
                             f"apply LaplacianPE first, which adds this attribute")
        encoding = data[self.attr_name]
        # A single graph needs no number of nodes.
        ptr = ptr_of(data, encoding.device) if isinstance(data, Batch) else torch.tensor(
            [0, len(encoding)], device=encoding.device)
        sign = 1 - 2 * torch.randint(2, (len(ptr) - 1, encoding.size(1)), device=encoding.device)
        put(data, self.attr_name, encoding * sign.repeat_interleave(ptr.diff(), dim=0), ptr)
        return data
