"""Encode nodes by the eigenvectors of the Laplacian."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse import csgraph
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.transforms.add_positional_encoding import add_node_attr

from graphattn._checks import check_bool, check_size
from graphattn.spectra import NotConverged, smallest_eigenvectors
from graphattn.transforms.adjacency import adjacency_of

MAX_DENSE = 200  # up to this number of nodes, all eigenvectors take less time than an iteration


class LaplacianPE(BaseTransform):
    r"""Add the first eigenvectors of the symmetric normalised Laplacian, without the trivial
    eigenvector.

    The Laplacian is :math:`I - D^{-1/2} A D^{-1/2}` without self-loops, and the trivial eigenvector
    is :math:`D^{1/2} 1`. The other eigenvectors are sorted by ascending eigenvalue. The encoding is
    that of PyG's ``AddLaplacianEigenvectorPE``, with these differences:

    - the computation is in float64, and eigenvectors that do not converge raise an error;
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
        TypeError: An argument is of the wrong type.
        ValueError: ``k`` is below 1, or a graph is directed or has weights that are negative or not
            finite.
        NotConverged: The graph is large and has too many almost equal eigenvalues.

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
        if isinstance(data, Batch):
            return Batch.from_data_list([self(each) for each in data.to_data_list()])
        adjacency = adjacency_of(data, max(MAX_DENSE, 8 * self.k))
        if not self.is_undirected:
            _check_undirected(adjacency, data)
        encoding = np.zeros((data.num_nodes, self.k), np.float32)
        count = min(self.k, data.num_nodes - 1)
        if count > 0:
            try:
                vectors = _eigenvectors(adjacency, count)
            except NotConverged as error:
                raise NotConverged(f"'k' must be smaller for {data}, because {count} eigenvectors "
                                   f"did not converge ({error}); use a smaller 'k', or use "
                                   f"RandomWalkPE") from None
            encoding[:, :count] = vectors * _signs(vectors)
        encoding = torch.from_numpy(encoding).to(data.edge_index.device)
        return add_node_attr(data, encoding, attr_name=self.attr_name)


def _check_undirected(adjacency: np.ndarray | sp.csr_array, data: Data) -> None:
    """Raise an error unless both directions of each edge have the same weight, up to the rounding
    of float32."""
    difference = abs(adjacency - adjacency.T) - 1e-5 * adjacency
    if adjacency.size and difference.max() > 0:
        column, row = divmod(int(difference.argmax()), adjacency.shape[0])
        raise ValueError(f"'edge_index' must have each edge in both directions with the same "
                         f"weight (got {float(adjacency[row, column]):g} from {row} to {column} "
                         f"and {float(adjacency[column, row]):g} back in {data}); apply "
                         f"torch_geometric.transforms.ToUndirected first")


def _eigenvectors(adjacency: np.ndarray | sp.csr_array, count: int) -> np.ndarray:
    """Return the ``count`` eigenvectors of the normalised Laplacian with the smallest eigenvalues,
    except the trivial eigenvector, ``[num_nodes, count]``."""
    loops = adjacency.diagonal()
    if loops.any():
        adjacency = adjacency - (sp.diags_array(loops) if sp.issparse(adjacency)
                                 else np.diag(loops))
    adjacency = (adjacency + adjacency.T) / 2  # changes the weights only by rounding
    root = np.sqrt(adjacency.sum(axis=0))
    inverse = np.divide(1, root, where=root > 0, out=np.zeros_like(root))
    if sp.issparse(adjacency):
        return _of_large(adjacency, root, inverse, count)
    return _of_small(adjacency * inverse * inverse[:, None], root, count)


def _of_small(scaled: np.ndarray, root: np.ndarray, count: int) -> np.ndarray:
    """Return the eigenvectors of :func:`_eigenvectors` by a dense decomposition. ``scaled`` is
    :math:`D^{-1/2} A D^{-1/2}`, and ``root`` is the trivial eigenvector :math:`D^{1/2} 1`. The
    trivial eigenvalue is raised from 0 to 3, above all others, which are at most 2, so that it
    comes last.

    Small matrices use one thread. Several threads wait for one another, so they take ten times as
    long while other processes use the cores.
    """
    trivial = root / max(np.linalg.norm(root), np.finfo(float).tiny)
    shifted = 3 * np.outer(trivial, trivial) - scaled
    shifted.flat[::len(root) + 1] += 1
    threads = torch.get_num_threads()
    try:
        if len(root) <= MAX_DENSE:
            torch.set_num_threads(1)
        return torch.linalg.eigh(torch.from_numpy(shifted)).eigenvectors[:, :count].numpy()
    finally:
        torch.set_num_threads(threads)


def _of_large(adjacency: sp.csr_array, root: np.ndarray, inverse: np.ndarray, count: int
              ) -> np.ndarray:
    """Return the eigenvectors of :func:`_eigenvectors` for a sparse matrix. Eigenvectors with
    eigenvalue 0 follow from the connected components; the others are computed by iteration.

    Args:
        adjacency (sparse array): A, symmetric without self-loops; scaled in place.
        root (ndarray): Diagonal of :math:`D^{1/2}`, ``[num_nodes]``.
        inverse (ndarray): Diagonal of :math:`D^{-1/2}`, 0 for isolated nodes.
        count (int): Number of eigenvectors.
    """
    num_components, component = csgraph.connected_components(adjacency, directed=False)
    adjacency.data *= inverse[adjacency.indices] * inverse.repeat(np.diff(adjacency.indptr))
    laplacian = sp.csr_array(sp.eye_array(len(root)) - adjacency)
    norm = np.sqrt(np.bincount(component, root**2, num_components))
    filled = np.flatnonzero(norm)  # all components but isolated nodes
    weight = root / np.where(norm > 0, norm, 1)[component]
    null_space = sp.csc_array((weight, (np.arange(len(root)), component)))[:, filled]
    vectors = _without_trivial(null_space, norm[filled], count)
    missing = count - vectors.shape[1]
    if missing:
        others = smallest_eigenvectors(laplacian, sp.csr_array(null_space), missing)
        vectors = np.hstack([vectors, others])
    return vectors


def _without_trivial(null_space: sp.csc_array, norm: np.ndarray, count: int) -> np.ndarray:
    """Return up to ``count`` orthonormal eigenvectors with eigenvalue 0 that are orthogonal to the
    trivial eigenvector, ``null_space @ norm``.

    They are columns of the Householder reflection that maps the trivial eigenvector to the first
    axis.

    Args:
        null_space (sparse array): Orthonormal basis of the eigenvectors with eigenvalue 0: a column
            for each connected component with edges, ``[num_nodes, c]``.
        norm (ndarray): Norm of the trivial eigenvector on each component, ``[c]``.
        count (int): Maximum number of vectors.
    """
    share = norm / max(np.linalg.norm(norm), np.finfo(float).tiny)
    others = slice(1, 1 + count)
    reflected = null_space @ share + null_space[:, :1].sum(axis=1)
    weight = share[others] / (1 + share[:1].sum())
    return null_space[:, others].toarray() - np.outer(reflected, weight)


def _signs(vectors: np.ndarray) -> np.ndarray:
    """Return the sign of each column of ``vectors`` that makes its largest entry positive, 1 or -1.
    Among entries that are equal up to rounding, the first one decides."""
    size = abs(vectors)
    first = (size >= (1 - 1e-6) * size.max(axis=0)).argmax(axis=0)
    return np.where(vectors[first, np.arange(vectors.shape[1])] < 0, -1., 1.)
