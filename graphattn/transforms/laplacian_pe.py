"""Encode nodes by the eigenvectors of the Laplacian, whose signs are drawn at random."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from graphattn._checks import check_bool, check_edge_index, check_range, check_size
from graphattn._explained import Explained
from graphattn.graphs.pyg_data import ptr_of
from graphattn.transforms.add_attention_edges import check_data, put

MAX_DENSE = 200  # up to this number of nodes, all eigenvectors take less time than an iteration


class LaplacianPE(BaseTransform, Explained):
    r"""Add the first eigenvectors of the symmetric normalised Laplacian, without the trivial
    eigenvector.

    The Laplacian is :math:`I - D^{-1/2} A D^{-1/2}` without self-loops, and the trivial eigenvector
    is :math:`D^{1/2} 1`. The other eigenvectors are sorted by ascending eigenvalue. The encoding is
    that of PyG's ``AddLaplacianEigenvectorPE``, with these differences:

    - the computation is in float64;
    - an eigenvector has the sign that makes its largest entry positive, so that results are
      reproducible. PyG draws signs at random, and as a ``pre_transform`` only once for the whole
      training. :class:`RandomSignFlip` draws signs in every epoch;
    - a graph with fewer than ``k + 1`` nodes has zeros in the missing columns, whereas PyG raises
      an error;
    - directed graphs raise an error;
    - in a ``Batch``, each graph is encoded separately.

    Eigenvectors of a repeated eigenvalue are defined up to a rotation, which depends on the order
    of the nodes. Symmetric graphs and disconnected graphs have repeated eigenvalues. In a graph
    with c connected components, not counting isolated nodes, the first c - 1 encodings have
    eigenvalue 0 and distinguish the components. An isolated node has eigenvalue 1.

    Args:
        k (int): Number of eigenvectors.
        attr_name (str, optional): Name of the attribute; ``None`` appends the encoding to ``x``.
        is_undirected (bool): Whether to assume that graphs are undirected, without a check.

    Raises:
        TypeError: An argument is of the wrong type, or the data is heterogeneous.
        ValueError: ``k`` is below 1, or a graph is directed or has weights that are negative or not
            finite.
        RuntimeError: The eigenvectors of a large graph did not converge.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from graphattn.transforms import LaplacianPE
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> LaplacianPE(2)(path).laplacian_eigenvector_pe.round(decimals=4)
        tensor([[ 0.7071, -0.5000],
                [-0.0000,  0.7071],
                [-0.7071, -0.5000]])

    Source: Dwivedi et al., "Benchmarking Graph Neural Networks" (2020), Sec. 2.
    """

    def __init__(self, k: int, attr_name: str | None = 'laplacian_eigenvector_pe',
                 is_undirected: bool = False):
        check_size('k', k, at_least=1)
        check_bool(is_undirected=is_undirected)
        self.k, self.attr_name, self.is_undirected = k, attr_name, is_undirected

    def forward(self, data: Data) -> Data:
        check_data(data)
        adjacency = _adjacency(data)
        if not self.is_undirected:
            _check_undirected(adjacency, data)
        adjacency = (adjacency + adjacency.T) / 2  # changes the weights only by rounding
        root = np.sqrt(adjacency.sum(axis=0))
        inverse = sp.diags_array(np.divide(1, root, where=root > 0, out=np.zeros_like(root)))
        scaled = sp.csr_array(inverse @ adjacency @ inverse)
        ptr = ptr_of(data, data.edge_index.device)
        encoding, num_inside = np.zeros((data.num_nodes, self.k), np.float32), 0
        for start, stop in pairwise(ptr.tolist()):
            part, count = scaled[start:stop, start:stop], min(self.k, stop - start - 1)
            num_inside += part.nnz
            try:
                vectors = _eigenvectors(part, root[start:stop], count) if count > 0 else None
            except ArpackError as error:
                raise RuntimeError(f"'k' must be smaller for {data}, because {count} eigenvectors "
                                   f"did not converge ({error}); use a smaller 'k', or PyG's "
                                   f"AddRandomWalkPE") from None
            if vectors is not None:
                encoding[start:stop, :count] = vectors * _signs(vectors)
        if num_inside != scaled.nnz:
            raise ValueError(f"'edge_index' must not join different graphs of the batch (got such "
                             f"edges in {data})")
        values, name = torch.from_numpy(encoding).to(data.edge_index.device), self.attr_name
        if name is None and data.x is not None:
            x = data.x.view(-1, 1) if data.x.dim() == 1 else data.x
            values = torch.cat([x, values.to(x.device, x.dtype)], dim=-1)
        put(data, 'x' if name is None else name, values, ptr)
        return data


def _adjacency(data: Data) -> sp.csr_array:
    if data.edge_index is None:
        raise ValueError(f"'data' must have the attribute 'edge_index' (got {data})")
    edge_index = data.edge_index.cpu()
    check_edge_index(edge_index)
    check_range(edge_index, data.num_nodes, data.num_nodes)
    row, column = edge_index.numpy()
    weight = np.ones(len(row))
    if data.edge_weight is not None:
        weight = data.edge_weight.detach().cpu().double().numpy()
    if weight.shape != row.shape or not ((weight >= 0) & (weight < np.inf)).all():
        least, most = (weight.min(), weight.max()) if weight.size else (np.nan, np.nan)
        raise ValueError(f"'edge_weight' must have shape [num_edges], with finite values of at "
                         f"least 0 (got shape {weight.shape}, from {most} down to {least}, in "
                         f"{data}); turn a distance d into the weight exp(-d)")
    edges = weight * (row != column), (row, column)
    adjacency = sp.csr_array(edges, shape=(data.num_nodes, data.num_nodes))
    adjacency.eliminate_zeros()
    return adjacency


def _check_undirected(adjacency: sp.csr_array, data: Data) -> None:
    # up to the rounding of float32
    difference = abs(adjacency - adjacency.T) - 1e-5 * adjacency
    if adjacency.nnz and difference.max() > 0:
        column, row = divmod(int(difference.argmax()), adjacency.shape[0])
        raise ValueError(f"'edge_index' must have each edge in both directions with the same "
                         f"weight (got {float(adjacency[row, column]):g} from {row} to {column} "
                         f"and {float(adjacency[column, row]):g} back in {data}); apply "
                         f"torch_geometric.transforms.ToUndirected first")


def _eigenvectors(scaled: sp.csr_array, root: np.ndarray, count: int) -> np.ndarray:
    size, trivial = len(root), root / max(np.linalg.norm(root), np.finfo(float).tiny)
    # The trivial eigenvalue is raised from 0 to 3, above all others, which are at most 2.
    if size <= max(MAX_DENSE, 8 * count):
        shifted = np.eye(size) + 3 * np.outer(trivial, trivial) - scaled.toarray()
        return scipy.linalg.eigh(shifted, subset_by_index=(0, count - 1))[1]
    shifted = LinearOperator((size, size), dtype=float, matvec=lambda x: (
        x + 3 * trivial * (trivial @ x) - scaled @ x))
    start = np.random.default_rng(0).standard_normal(size)
    # A basis of 40 vectors finds eigenvalues that are repeated, which the default of 20 may miss.
    values, vectors = eigsh(shifted, count, which='SA', v0=start, ncv=max(40, 2 * count + 20))
    return vectors[:, values.argsort()]


def _signs(vectors: np.ndarray) -> np.ndarray:
    # The largest entry becomes positive; among those equal up to rounding, the first decides.
    size = abs(vectors)
    first = (size >= (1 - 1e-6) * size.max(axis=0)).argmax(axis=0)
    return np.where(vectors[first, np.arange(vectors.shape[1])] < 0, -1., 1.)


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
