"""PyG's TransformerConv on this library's kernels."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, TransformerConv

from graphattn import functional, ops
from graphattn._checks import (
    MAX_SIDE,
    check_bool,
    check_dropout,
    check_floating,
    check_place,
    check_sides,
    check_size,
)
from graphattn.functional.drive import drive
from graphattn.graphs.from_pyg import (
    Edges,
    SortedEdges,
    edge_index_of,
    edge_values_of,
    sort_edges,
)
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.merging import RepeatedEdges
from graphattn.layers.projections import is_product, project
from graphattn.ops import LogitTerms

_HOOKS_ON_MESSAGES = [f'_{step}_forward{when}hooks' for when in ('_', '_pre_')
                      for step in ('propagate', 'message', 'aggregate')]


class GraphTransformerConv(TransformerConv):
    r"""The graph transformer operator: PyG's ``TransformerConv``, fused.

    .. math::
        x'_i = W_1 x_i + \sum_{j \in \mathcal{N}(i)} \alpha_{ij} (W_2 x_j + W_6 e_{ij}), \qquad
        \alpha_{ij} = \operatorname*{softmax}_{j \in \mathcal{N}(i)} \frac{\langle W_3 x_i,
        W_4 x_j + W_6 e_{ij} \rangle}{\sqrt{C}}

    Constructor, arguments of a call, results and ``state_dict`` are those of
    :class:`torch_geometric.nn.TransformerConv`, which it is a subclass of. What differs is what is
    held in memory: no edges x channels, neither of keys and values nor of projected features
    (:func:`graphattn.functional.edge_feature_attention`).

    PyG's own messages are formed, in its own time and memory, while an explainer is at work, where
    a hook is registered or attention weights are asked for, for another ``aggr`` than the sum or
    another ``flow``, where the projection of features is pruned or another module, and, with a
    warning, for edges that are given more than once.

    Args:
        in_channels (int or tuple): Size of each node; a tuple has those of keys and of queries.
            With ``-1`` it is taken from the first input.
        out_channels (int): Size :math:`C` of each head.
        heads (int): Number of heads.
        concat (bool): Whether heads are concatenated, or averaged.
        beta (bool): Whether :math:`W_1 x_i` and the sum are mixed by a learned gate instead of
            added.
        dropout (float): Probability with which an attention weight is zeroed in training.
        edge_dim (int, optional): Size of the features of edges, if there are any.
        bias (bool): Whether the projections have one.
        root_weight (bool): Whether :math:`W_1 x_i` is added; without it ``beta`` does nothing.
        backend (str): Kernel, see :func:`graphattn.functional.edge_attention`.
        **kwargs: Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Raises:
        TypeError, ValueError: An argument is of the wrong type or out of range, or the backend is
            unknown.

    Source: Shi et al., "Masked Label Prediction" (2021), Eq. 3 to 5.

    Example:
        >>> import torch
        >>> from graphattn.layers import GraphTransformerConv
        >>> conv = GraphTransformerConv(-1, 8, heads=2, edge_dim=3)
        >>> edge_index, edge_attr = torch.tensor([[0, 2, 1], [1, 1, 0]]), torch.randn(3, 3)
        >>> conv(torch.randn(3, 5), edge_index, edge_attr).shape
        torch.Size([3, 16])
    """

    # PyG compiles these for each class; those of the class above would hide the messages that
    # explainers ask for.
    propagate = MessagePassing.propagate
    edge_updater = MessagePassing.edge_updater

    def __init__(self, in_channels: int | tuple[int, int], out_channels: int, heads: int = 1,
                 concat: bool = True, beta: bool = False, dropout: float = 0.,
                 edge_dim: int | None = None, bias: bool = True, root_weight: bool = True, *,
                 backend: str = 'auto', **kwargs):
        for size in in_channels if isinstance(in_channels, tuple) else (in_channels,):
            check_size('in_channels', size, -1, MAX_SIDE)
            if size == 0:
                raise ValueError("'in_channels' must be positive, or -1 to take it from the first "
                                 "input (got 0)")
        check_sides(out_channels=out_channels, heads=heads)
        check_bool(concat=concat, beta=beta, bias=bias, root_weight=root_weight)
        check_dropout(dropout=dropout)
        if edge_dim is not None:
            check_sides(edge_dim=edge_dim)
        ops.check_backend(backend)
        super().__init__(in_channels, out_channels, heads, concat, beta, dropout, edge_dim, bias,
                         root_weight, **kwargs)
        self.backend = backend

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Edges,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Let nodes attend along the edges.

        Args:
            x (Tensor or tuple): ``[num_nodes, in_channels]``, or a pair of keys and queries.
            edge_index (Tensor, SparseTensor or BipartiteGraph): int64 ``[2, num_edges]`` in any
                order, an ``EdgeIndex``, a transposed adjacency ``adj_t`` as a sparse Tensor of
                torch or of torch-sparse, or a graph. It is sorted once for as long as it lives.
            edge_attr (Tensor, optional): ``[num_edges, edge_dim]``, in the order of
                ``edge_index``. If omitted, the values ``[num_edges, edge_dim]`` of ``adj_t``.
            return_attention_weights (bool, optional): As in PyG, any bool asks for them.

        Returns:
            Tensor ``[num_queries, heads * out_channels]``, or ``[num_queries, out_channels]``
            without ``concat``. With weights a pair ``(out, (edge_index, alpha))``, or ``(out,
            adj_t)`` with alpha for values of a SparseTensor.

        Raises:
            TypeError, ValueError: As :func:`graphattn.functional.edge_attention`; or there are
                features of edges without an ``edge_dim``, or none with one.
        """
        pair = x if isinstance(x, tuple) else (x, x)
        _check_nodes(pair[0], self.lin_key)
        if isinstance(x, tuple):
            _check_nodes(pair[1], self.lin_query)
        edge_attr = self._edge_attr(edge_index, edge_attr)
        if return_attention_weights is not None:
            check_bool(return_attention_weights=return_attention_weights)
        if return_attention_weights is not None or self._wants_messages():
            return self._by_messages(x, edge_index, edge_attr, return_attention_weights)
        try:
            edges = sort_edges(edge_index, pair[1].size(0), pair[0].size(0))
        except RepeatedEdges as error:
            warnings.warn(f"PyG's messages are formed, more slowly, for {error}",
                          stacklevel=2)
            return self._by_messages(x, edge_index, edge_attr, None)
        key, value, query, root = self._project(pair)
        return self._with_root(self._attend(query, key, value, edges, edge_attr), root)

    def _wants_messages(self) -> bool:
        own = self.__dict__
        for hooks in _HOOKS_ON_MESSAGES:
            if own[hooks]:
                return True
        is_sum = (self.aggr in ('add', 'sum') and self.flow == 'source_to_target'
                  and self.decomposed_layers == 1)
        return not is_sum or bool(self.explain) or not (self.lin_edge is None or (
            is_product(self.lin_edge) and self.lin_edge.bias is None))

    def _by_messages(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Edges,
                     edge_attr: Tensor | None, return_attention_weights: bool | None):
        if isinstance(edge_index, BipartiteGraph):
            if edge_index.is_reordered and (self.explain or self._message_forward_hooks):
                raise ValueError("'edge_index' is a graph with its edges in another order than "
                                 "they were given in, by which an explainer or a hook would take "
                                 "them; pass the edges themselves")
            edge_index = edge_index_of(edge_index)
        elif _is_uncoalesced(edge_index):
            # A view of it, for PyG reads those alone that are marked as coalesced.
            marked = edge_index.detach()._coalesced_(True)
            out = super().forward(x, marked, edge_attr, return_attention_weights)
            return out if return_attention_weights is None else (out[0], (edge_index, out[1][1]))
        return super().forward(x, edge_index, edge_attr, return_attention_weights)

    def _project(self, x: tuple[Tensor, Tensor]) -> list[Tensor | None]:
        """Return keys, values and queries, heads apart, and what a node keeps of itself."""
        of_keys, of_queries = [self.lin_key, self.lin_value], [self.lin_query]
        if self.root_weight:
            of_queries.append(self.lin_skip)
        key, value, query, *root = (
            project(x[0], *of_keys, *of_queries) if x[0] is x[1] else
            (*project(x[0], *of_keys), *project(x[1], *of_queries)))
        by_head = -1, self.heads, self.out_channels
        return [*(nodes.view(by_head) for nodes in (key, value, query)), *(root or [None])]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, edges: SortedEdges,
                edge_attr: Tensor | None) -> Tensor:
        """Return the sums over edges, heads apart."""
        dropout_p = self.dropout if self.training else 0.
        if edge_attr is None:
            terms = LogitTerms(scale=None, dropout_p=dropout_p)
            return drive(query, key, value, edges.graph, terms, 1, 0., backend=self.backend)[0]
        if len(edge_attr) != edges.graph.num_edges:
            raise ValueError(f"'edge_attr' must have a row for each of the {edges.graph.num_edges} "
                             f"edges (got {len(edge_attr)})")
        projection = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        projection = projection.to(query.dtype)  # which autocast has made of it
        return functional.edge_feature_attention(query, key, value, edges.graph,
                                                 edges.sort(edge_attr).to(query.dtype), projection,
                                                 dropout_p=dropout_p, backend=self.backend)

    def _with_root(self, out: Tensor, root: Tensor | None) -> Tensor:
        """Return heads joined, and what a node keeps of itself."""
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        if root is None:
            return out
        if self.lin_beta is None:
            # No other code holds the output of a plain projection, no other tensor of its size.
            is_own = root._base is None and is_product(self.lin_skip)
            return root.add_(out) if is_own else root + out
        share = self.lin_beta(torch.cat([out, root, out - root], dim=-1)).sigmoid()
        return share * root + (1 - share) * out

    def _edge_attr(self, edge_index: Edges, edge_attr: Tensor | None) -> Tensor | None:
        if edge_attr is None and self.edge_dim is not None:
            values = edge_values_of(edge_index)
            edge_attr = values if values is not None and values.dim() == 2 else None
            if edge_attr is None:
                raise ValueError(f"'edge_attr' must be given to a layer with edge_dim="
                                 f"{self.edge_dim}")
        if edge_attr is None:
            return None
        check_floating('edge_attr', edge_attr)
        if edge_attr.dim() != 2 or edge_attr.size(1) != self.edge_dim:
            raise ValueError(f"'edge_attr' must be [num_edges, edge_dim] with the layer's edge_dim="
                             f"{self.edge_dim} (got shape {tuple(edge_attr.shape)})")
        return edge_attr


def _is_uncoalesced(edges: Edges) -> bool:
    return isinstance(edges, Tensor) and edges.is_sparse and not edges.is_coalesced()


def _check_nodes(x: Tensor, linear: nn.Module) -> None:
    check_floating('x', x)
    channels = getattr(linear, 'in_channels', -1)
    if x.dim() != 2 or channels not in (-1, x.size(1)):
        raise ValueError(f"'x' must be [num_nodes, {channels}] (got shape {tuple(x.shape)})")
    check_place('x', x, linear)
