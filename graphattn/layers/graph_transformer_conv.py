"""PyG's TransformerConv on this library's kernels."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric.nn import Linear, MessagePassing, TransformerConv

from graphattn import functional, ops
from graphattn._checks import (
    LONGEST_SIDE,
    check_bool,
    check_dropout,
    check_floating,
    check_place,
    check_sides,
    check_size,
)
from graphattn.graphs.from_pyg import (
    Edges,
    SortedEdges,
    edge_index_of,
    edge_values_of,
    sort_edges,
)
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.merging import RepeatedEdges


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
            check_size('in_channels', size, -1, LONGEST_SIDE)
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
        """Lets nodes attend along the edges.

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
        for features, linear in zip(pair, (self.lin_key, self.lin_query)):
            _check_nodes(features, linear)
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
        return self._with_root(self._attend(pair, edges, edge_attr), pair[1])

    def _wants_messages(self) -> bool:
        is_sum = (self.aggr in ('add', 'sum') and self.flow == 'source_to_target'
                  and self.decomposed_layers == 1)
        return not is_sum or bool(self.explain) or not _is_product(self.lin_edge) or any(
            getattr(self, f'_{step}_forward{when}hooks') for when in ('_', '_pre_')
            for step in ('propagate', 'message', 'aggregate'))

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

    def _attend(self, x: tuple[Tensor, Tensor], edges: SortedEdges,
                edge_attr: Tensor | None) -> Tensor:
        """Return the sums over edges, heads apart."""
        by_head = (-1, self.heads, self.out_channels)
        query = self.lin_query(x[1]).view(by_head)
        key, value = (linear(x[0]).view(by_head) for linear in (self.lin_key, self.lin_value))
        options = {'dropout_p': self.dropout if self.training else 0., 'backend': self.backend}
        if edge_attr is None:
            return functional.edge_attention(query, key, value, edges.graph, **options)
        if len(edge_attr) != edges.graph.num_edges:
            raise ValueError(f"'edge_attr' must have a row for each of the {edges.graph.num_edges} "
                             f"edges (got {len(edge_attr)})")
        projection = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        projection = projection.to(query.dtype)  # which autocast has made of it
        return functional.edge_feature_attention(query, key, value, edges.graph,
                                                 edges.sort(edge_attr).to(query.dtype), projection,
                                                 **options)

    def _with_root(self, out: Tensor, x: Tensor) -> Tensor:
        """Heads joined, and what a node keeps of itself."""
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        if not self.root_weight:
            return out
        root = self.lin_skip(x)
        if self.lin_beta is None:
            # Nobody else holds what a plain projection has made: no other tensor of its size.
            return root.add_(out) if _is_product(self.lin_skip) else root + out
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


def _is_product(linear: nn.Module | None) -> bool:
    """Whether a projection is that by its weight, which then need not be called: nothing has taken
    its place or changes it when it is, as hooks and pruning do."""
    if linear is None:
        return True
    return type(linear) is Linear and not _has_any_global_hook() and not any((
        linear._forward_pre_hooks, linear._forward_hooks, linear._backward_pre_hooks,
        linear._backward_hooks))


def _is_uncoalesced(edges: Edges) -> bool:
    return isinstance(edges, Tensor) and edges.is_sparse and not edges.is_coalesced()


def _check_nodes(x: Tensor, linear: nn.Module) -> None:
    check_floating('x', x)
    channels = getattr(linear, 'in_channels', -1)
    if x.dim() != 2 or channels not in (-1, x.size(1)):
        raise ValueError(f"'x' must be [num_nodes, {channels}] (got shape {tuple(x.shape)})")
    check_place('x', x, linear)
