"""Add the edges of a pattern to PyG's data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import BaseTransform

from graphattn._checks import check_kind, check_seed, check_size
from graphattn._explained import Explained
from graphattn._tensors import row_pointer
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pyg_data import ptr_of
from graphattn.graphs.segments import segment_of
from graphattn.patterns import Pattern, parse


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
        check_data(data)
        some = next((x for x in data.to_dict().values() if isinstance(x, Tensor)), torch.empty(0))
        ptr = ptr_of(data, some.device)
        graph = BipartiteGraph.batch([
            self.pattern.build(length, seed=self.seed, crop=True, device=some.device)
            for length in ptr.diff().tolist()])
        if self.attr_name is not None:
            put(data, self.attr_name, graph.edge_index.as_tensor(), graph.csr[0][ptr], ptr[:-1])
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
        put(data, 'edge_index', edge_index[:, order], slices, ptr[:-1])
        for name, value in values.items():
            put(data, name, value[order], slices)
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
