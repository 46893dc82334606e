"""Encode nodes by the probabilities that a random walk returns."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.transforms.add_positional_encoding import add_node_attr

from graphattn._checks import check_size
from graphattn.transforms.adjacency import adjacency_of

# Number of nodes up to which matrices are dense, as in PyG: the powers of a small matrix have few
# zeros.
MAX_DENSE = 2_000


class RandomWalkPE(BaseTransform):
    r"""Add the probabilities that a random walk from a node is back at this node after 1, 2, ..., K
    steps.

    .. math::
        p_n = \big((D^{-1} A)_{nn}, (D^{-1} A)^2_{nn}, \dots, (D^{-1} A)^K_{nn}\big)

    For graphs without weights, the result equals that of PyG's ``AddRandomWalkPE``. For weighted
    graphs, PyG divides by weighted degrees but uses the weight 1 for every edge. This class forms
    only half of the powers of :math:`P = D^{-1} A`, because the diagonal of :math:`P^{a + b}` does
    not need the full product of :math:`P^a` and :math:`P^b`.

    Args:
        walk_length (int): Number K of steps.
        attr_name (str, optional): Name of the attribute; ``None`` appends the encoding to ``x``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``walk_length`` is below 1, or a graph has weights that are negative or not
            finite.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from graphattn.transforms import RandomWalkPE
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> RandomWalkPE(2)(path).random_walk_pe
        tensor([[0.0000, 0.5000],
                [0.0000, 1.0000],
                [0.0000, 0.5000]])

    Source: Dwivedi et al., "Graph Neural Networks with Learnable Structural and Positional
    Representations" (2022), Sec. 3.3.
    """

    def __init__(self, walk_length: int, attr_name: str | None = 'random_walk_pe'):
        check_size('walk_length', walk_length, at_least=1)
        self.walk_length, self.attr_name = walk_length, attr_name

    def forward(self, data: Data) -> Data:
        adjacency = adjacency_of(data, MAX_DENSE).astype(np.float32)
        degree = adjacency.sum(axis=1)
        step = adjacency / np.where(degree > 0, degree, 1)[:, None]
        step = step.tocsr() if sp.issparse(step) else step
        power, transposed, returns = step, step.T, [step.diagonal()]
        while len(returns) < self.walk_length:
            returns.append((power * transposed).sum(axis=1))
            if len(returns) < self.walk_length:
                longer = power @ step
                returns.append((longer * transposed).sum(axis=1))
                power, transposed = longer, longer.T
        encoding = torch.from_numpy(np.stack(returns, axis=1)).float()
        return add_node_attr(data, encoding.to(data.edge_index.device), attr_name=self.attr_name)
