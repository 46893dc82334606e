"""PyG transforms, which add structural encodings of nodes or the edges of patterns to data."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import BaseTransform

from graphattn._checks import (
    check_bool,
    check_edge_index,
    check_kind,
    check_range,
    check_seed,
    check_size,
)
from graphattn._explained import Explained
from graphattn._tensors import row_pointer
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pyg_data import ptr_of
from graphattn.graphs.segments import segment_of
from graphattn.patterns import Pattern, parse

__all__ = ['AddAttentionEdges', 'LaplacianPE', 'RandomSignFlip']

MAX_DENSE = 200  # up to this number of nodes, all eigenvectors take less time than an iteration
MAX_BASIS = 2_000  # number of vectors that an iteration keeps at most


class AddAttentionEdges(BaseTransform, Explained):
    """Add the edges of a pattern to a graph, or to each graph of a batch.

    With ``attr_name``, the edges of the pattern become a separate attribute of the data, and the
    edges of the data do not change. With ``attr_name=None``, the edges of the pattern are appended
    to ``edge_index``. ``edge_type`` then distinguishes the edges of the pattern from the edges of
    the data, and edges that the data already has are not added.

    The positions of the pattern are the indices of the nodes. The edges of the pattern point from
    key to query and may be self-loops; ``'Full() - SlidingWindow(0)'``, for instance, has no
    self-loops. If a loader samples nodes, pass the transform as the ``transform`` of the loader, so
    that it runs after the sampling.

    Args:
        pattern (Pattern or str): A pattern or its expression, such as ``'RandomRegular(4)'``, which
            is an expander. A graph with too few nodes for the pattern gets the edges among the
            first tokens of a larger graph.
        attr_name (str, optional): Name of the attribute. It must end with ``edge_index``, so that
            PyG renumbers the nodes in batches. ``None`` appends the edges to ``edge_index``.
        seed (int, optional): Seed of a random pattern. With a seed, all graphs with the same number
            of nodes get the same edges. With ``None``, every call draws new edges from torch's
            default generator.
        edge_type (int): Type of the added edges. Edges of the data keep their ``edge_type``, or get
            0 if they have none.
        fill (dict, optional): The value of the added edges for each attribute of edges, such as
            ``{'edge_attr': 0.}``. A value is a number, or a Tensor for one edge. With
            ``attr_name=None``, a value is required for every attribute of edges that the data has.

    Raises:
        TypeError: An argument is of the wrong type, or the data is heterogeneous.
        ValueError: ``attr_name`` has another ending, or both ``attr_name`` and ``fill`` are given.
            In a call, an attribute of edges is not in ``fill`` or does not fit the edges.

    Source: Shirzad et al., "Exphormer" (2023), Sec. 3, whose graphs join three kinds of edges.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from torch_geometric.transforms import Compose, VirtualNode
        >>> from graphattn.transforms import AddAttentionEdges
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> AddAttentionEdges('Full() - SlidingWindow(0)', attr_name=None)(path).edge_type
        tensor([0, 0, 0, 0, 1, 1])
        >>> exphormer = Compose([AddAttentionEdges('RandomRegular(2)', attr_name=None),
        ...                      VirtualNode()])
        >>> exphormer(path).edge_type
        tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3])
    """

    def __init__(self, pattern: Pattern | str, attr_name: str | None = 'attention_edge_index', *,
                 seed: int | None = 0, edge_type: int = 1,
                 fill: dict[str, float | Tensor] | None = None):
        pattern = parse(pattern) if isinstance(pattern, str) else pattern
        check_kind('pattern', pattern, Pattern)
        if attr_name is not None:
            check_kind('attr_name', attr_name, str)
            if not attr_name.endswith('edge_index') or 'batch' in attr_name:
                raise ValueError(f"'attr_name' must end with 'edge_index' and not contain 'batch', "
                                 f"so that PyG renumbers the nodes in batches (got {attr_name!r}); "
                                 f"pass 'attention_edge_index', for instance")
            if fill is not None:
                raise ValueError(f"'fill' must be None unless attr_name=None, because only then "
                                 f"edges are appended to 'edge_index' (got a dict and "
                                 f"attr_name={attr_name!r}); omit 'fill', or pass attr_name=None")
        if seed is not None:
            check_seed(seed)
        check_size('edge_type', edge_type)
        check_kind('fill', fill or {}, dict)
        self.pattern, self.attr_name, self.seed = pattern, attr_name, seed
        self.edge_type, self.fill = edge_type, fill or {}

    def forward(self, data: Data) -> Data:
        _check_data(data)
        some = next((x for x in data.to_dict().values() if isinstance(x, Tensor)), torch.empty(0))
        ptr = ptr_of(data, some.device)
        graph = BipartiteGraph.batch([
            self.pattern.build(length, seed=self.seed, crop=True, device=some.device)
            for length in ptr.diff().tolist()])
        if self.attr_name is not None:
            _put(data, self.attr_name, graph.edge_index.as_tensor(), graph.csr[0][ptr], ptr[:-1])
            return data
        if data.edge_index is None:
            raise ValueError(f"'data' must have an 'edge_index' Tensor (got {data}); call this "
                             f"transform before ToSparseTensor and other conversions")
        added = (graph - BipartiteGraph.from_data(data)).edge_index.as_tensor()
        num_own, num_added = data.edge_index.size(1), added.size(1)
        values = {name: self._filled(name, data.get(name), num_own, num_added)
                  for name in self._attributes(data)}
        values['edge_type'] = torch.cat([self._type_of(data, num_own),
                                         added.new_full((num_added,), self.edge_type)])
        edge_index = torch.cat([data.edge_index, added], dim=1)
        # The edges of a graph are adjacent, its own before the added ones.
        owner, order = segment_of(ptr, data.num_nodes)[edge_index[0]].sort(stable=True)
        slices = row_pointer(owner, len(ptr) - 1)
        _put(data, 'edge_index', edge_index[:, order], slices, ptr[:-1])
        for name, value in values.items():
            _put(data, name, value[order], slices)
        return data

    def _attributes(self, data: Data) -> list[str]:
        known = {'edge_attr', 'edge_weight'} & set(data.keys())
        known |= {name for name in data.edge_attrs() if 'edge' in name and 'index' not in name}
        missing = sorted(known - {'edge_type'} - self.fill.keys())
        if missing:
            raise ValueError(f"'fill' must contain {missing[0]!r}, because the edges of the data "
                             f"have this attribute (got {list(self.fill)})")
        return list(self.fill)

    def _filled(self, name: str, value: Tensor | None, num_own: int, num_added: int) -> Tensor:
        if not isinstance(value, Tensor) or value.dim() == 0 or value.size(0) != num_own:
            shape = tuple(value.shape) if isinstance(value, Tensor) else value
            raise ValueError(f"{name!r} of 'data' must have {num_own} rows, one for each edge (got "
                             f"shape {shape})")
        fill = torch.as_tensor(self.fill[name], device=value.device)
        if not torch.can_cast(fill.dtype, value.dtype):
            raise TypeError(f"'fill' must contain a {value.dtype} value for {name!r}, the dtype of "
                            f"this attribute (got {fill.dtype})")
        rows = fill.to(value.dtype).expand(num_added, *value.shape[1:])
        return torch.cat([value, rows])

    def _type_of(self, data: Data, num_own: int) -> Tensor:
        own = data.get('edge_type')
        if own is None:
            return data.edge_index.new_zeros(num_own)
        if bool((own == self.edge_type).any()):
            raise ValueError(f"'edge_type' must be a number that no edge of the data has as its "
                             f"type (got {self.edge_type}); pass edge_type={int(own.max()) + 1}")
        return own

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.pattern!r}, attr_name={self.attr_name!r})'


def _check_data(data: Data) -> None:
    if not isinstance(data, Data):
        hint = '; pass data.to_homogeneous()' if isinstance(data, HeteroData) else ''
        raise TypeError(f"'data' must be a PyG Data or a Batch of Data (got "
                        f"{type(data).__name__}){hint}")


def _put(data: Data, name: str, values: Tensor, slices: Tensor,
         shift: Tensor | None = None) -> None:
    # slices, shift: where the values of each graph begin, and by how much its numbers are shifted
    data[name] = values
    if hasattr(data, '_slice_dict'):  # PyG reads only this when it takes a batch apart
        shift = None if shift is None else shift.cpu()
        # Copies of a batch share the old dicts.
        data._slice_dict = {**data._slice_dict, name: slices.cpu()}
        data._inc_dict = {**data._inc_dict, name: shift}


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
        _check_data(data)
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
        _put(data, 'x' if name is None else name, values, ptr)
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
    # If an eigenvalue is repeated more often, as 0 is in a graph of many parts, rounding decides
    # whether 40 suffice.
    basis = max(40, 2 * count + 20)
    largest = min(size, max(basis, MAX_BASIS))
    while True:
        try:
            values, vectors = eigsh(shifted, count, which='SA', v0=start, ncv=min(basis, largest))
            return vectors[:, values.argsort()]
        except ArpackNoConvergence:
            if basis >= largest:
                raise
            basis *= 4


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
        _check_data(data)
        if self.attr_name not in data:
            raise ValueError(f"'data' must have the attribute '{self.attr_name}' (got {data}); "
                             f"apply LaplacianPE first, which adds this attribute")
        encoding = data[self.attr_name]
        # A single graph needs no number of nodes.
        ptr = ptr_of(data, encoding.device) if isinstance(data, Batch) else torch.tensor(
            [0, len(encoding)], device=encoding.device)
        sign = 1 - 2 * torch.randint(2, (len(ptr) - 1, encoding.size(1)), device=encoding.device)
        _put(data, self.attr_name, encoding * sign.repeat_interleave(ptr.diff(), dim=0), ptr)
        return data
