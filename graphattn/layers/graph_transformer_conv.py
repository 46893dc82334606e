"""PyG's TransformerConv on this library's kernels."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric.nn import Linear, MessagePassing, TransformerConv

from graphattn import functional, ops
from graphattn._checks import (
    MAX_SIDE,
    check_bool,
    check_dropout,
    check_edge_index,
    check_floating,
    check_place,
    check_shape,
    check_sides,
    check_size,
)
from graphattn._explained import Explained
from graphattn.functional.drive import drive
from graphattn.graphs.from_pyg import Edges, SortedEdges, edge_index_of, edge_values_of, sort_edges
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pairs import RepeatedEdges
from graphattn.layers.edge_attention import has_hooks, hooks_on, overrides
from graphattn.ops import LogitTerms

_STEPS = 'propagate', 'message', 'aggregate'
_ON_STEPS = hooks_on(*_STEPS)
# Edges of a GPU's tensor up to which PyG's messages, which need no sort, compute them. On an H200,
# a training step without features along new edges took PyG 1.9, 2.0 and 12.7 ms for 1,700, 10,556
# and 1M edges, and kernels along sorted edges 2.8, 3.5 and 3.1 ms, so that both would take equally
# long for some 100,000 edges. Nothing between was measured.
FEW_EDGES = 2**16


class GraphTransformerConv(TransformerConv, Explained):
    r"""The graph transformer operator: PyG's ``TransformerConv`` with a fused kernel.

    .. math::
        x'_i = W_1 x_i + \sum_{j \in \mathcal{N}(i)} \alpha_{ij} (W_2 x_j + W_6 e_{ij}), \qquad
        \alpha_{ij} = \operatorname*{softmax}_{j \in \mathcal{N}(i)} \frac{\langle W_3 x_i,
        W_4 x_j + W_6 e_{ij} \rangle}{\sqrt{C}}

    Constructor, call, results and ``state_dict`` are the same as in the base class
    :class:`torch_geometric.nn.TransformerConv`. The difference is memory: neither keys and values
    nor projected edge features are stored for every edge
    (:func:`graphattn.functional.edge_feature_attention`).

    The layer falls back to PyG's messages, which take PyG's time and memory, in these cases:

    - a GPU's ``edge_index`` has at most 65,536 edges, which PyG computes before they are sorted;
    - an explainer is active, a hook is registered, or attention weights are requested;
    - a subclass replaces ``message``, ``aggregate`` or ``update``;
    - ``aggr`` is not the sum, or ``flow`` is not the default;
    - the projection of edge features is pruned or replaced;
    - edges are repeated (with a warning).

    Args:
        in_channels (int or tuple): Size of each node; a tuple has the size of the nodes that send
            keys and the size of the nodes that receive them. With ``-1`` the size is derived from
            the first input.
        out_channels (int): Size :math:`C` of each head.
        heads (int): Number of heads.
        concat (bool): Concatenate heads if set, else average them.
        beta (bool): Mix :math:`W_1 x_i` and the sum by a learned gate instead of adding them.
        dropout (float): Probability of zeroing an attention weight in training.
        edge_dim (int, optional): Size of the features of an edge; omitted if edges have no
            features.
        bias (bool): Whether the projections have a bias.
        root_weight (bool): Whether :math:`W_1 x_i` is added. If not, ``beta`` has no effect.
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

    # PyG generates these methods for each class. The methods that PyG generated for the base class
    # would skip the messages that explainers need.
    propagate = MessagePassing.propagate
    edge_updater = MessagePassing.edge_updater
    _overrides_messages = False

    def __init__(self, in_channels: int | tuple[int, int], out_channels: int, heads: int = 1,
                 concat: bool = True, beta: bool = False, dropout: float = 0.,
                 edge_dim: int | None = None, bias: bool = True, root_weight: bool = True, *,
                 backend: str = 'auto', **kwargs):
        for size in in_channels if isinstance(in_channels, tuple | list) else (in_channels,):
            check_size('in_channels', size, -1, MAX_SIDE)
            if size == 0:
                raise ValueError("'in_channels' must be positive, or -1 to read the size from the "
                                 "first input (got 0)")
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
        """Return the output of attention along the edges, and optionally the weights.

        Args:
            x (Tensor or tuple): ``[num_nodes, in_channels]``, or a pair of tensors: the nodes that
                send keys and the nodes that receive them.
            edge_index (Tensor, SparseTensor or BipartiteGraph): int64 ``[2, num_edges]`` in any
                order, an ``EdgeIndex``, a transposed adjacency ``adj_t`` as a sparse Tensor of
                torch or of torch-sparse, or a graph. The sorted edges are cached as long as
                ``edge_index`` lives.
            edge_attr (Tensor, optional): ``[num_edges, edge_dim]``, in the order of ``edge_index``.
                If omitted, the layer uses the values ``[num_edges, edge_dim]`` of ``adj_t``.
            return_attention_weights (bool, optional): Also return the weights, whether the argument
                is True or False, as in PyG; ``None`` returns no weights.

        Returns:
            Tensor ``[num_queries, heads * out_channels]``, or ``[num_queries, out_channels]``
            without ``concat``. With weights, ``(out, (edge_index, alpha))``; for a SparseTensor,
            ``(out, adj_t)``, where the values of ``adj_t`` are the weights.

        Raises:
            TypeError, ValueError: See :func:`graphattn.functional.edge_attention`. A ValueError is
                also raised if ``edge_dim`` is set without edge features in the call, or the call
                has edge features without ``edge_dim``.
        """
        is_pair = isinstance(x, tuple | list)
        pair = x if is_pair else (x, x)
        _check_nodes(pair[0], self.lin_key)
        if is_pair:
            _check_nodes(pair[1], self.lin_query)
        edge_attr = self._edge_attr(edge_index, edge_attr)
        if return_attention_weights is not None:
            check_bool(return_attention_weights=return_attention_weights)
        if (return_attention_weights is not None or self._wants_messages()
                or self.backend == 'auto' and _are_few(edge_index)):
            return self._by_messages(x, edge_index, edge_attr, return_attention_weights)
        try:
            edges = sort_edges(edge_index, pair[1].size(0), pair[0].size(0))
        except RepeatedEdges as error:
            if edge_attr is not None and edge_index.layout == torch.strided:
                _check_rows(edge_attr, edge_index.size(1))
            # the caller is behind the explained call and torch's
            warnings.warn(f"falling back to PyG's slower messages: {error}", stacklevel=5)
            return self._by_messages(x, edge_index, edge_attr, None)
        key, value, query, root = self._project(pair)
        return self._with_root(self._attend(query, key, value, edges, edge_attr), root)

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls._overrides_messages = overrides(cls, GraphTransformerConv, *_STEPS, 'update')

    def _wants_messages(self) -> bool:
        if self._overrides_messages or has_hooks(self, _ON_STEPS):
            return True
        is_sum = (self.aggr in ('add', 'sum') and self.flow == 'source_to_target'
                  and self.decomposed_layers == 1)
        return not is_sum or bool(self.explain) or not (self.lin_edge is None or (
            _is_product(self.lin_edge) and self.lin_edge.bias is None))

    def _by_messages(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Edges,
                     edge_attr: Tensor | None, return_attention_weights: bool | None):
        if isinstance(edge_index, BipartiteGraph):
            if edge_index.is_reordered and (self.explain or self._message_forward_hooks):
                raise ValueError("'edge_index' must have its edges in the order in which they were "
                                 "passed, because explainers and hooks expect this order (got a "
                                 "graph that sorted its edges); pass the unsorted edges as a "
                                 "tensor instead")
            edge_index = edge_index_of(edge_index)
        elif isinstance(edge_index, Tensor) and edge_index.layout == torch.strided:
            check_edge_index(edge_index)  # PyG computes wrong gradients along int32 edges
        elif (isinstance(edge_index, Tensor) and edge_index.is_sparse
              and not edge_index.is_coalesced()):
            # PyG reads only tensors that are marked as coalesced. The mark is set on a view, so
            # that the tensor of the caller does not change.
            marked = edge_index.detach()._coalesced_(True)
            out = super().forward(x, marked, edge_attr, return_attention_weights)
            return out if return_attention_weights is None else (out[0], (edge_index, out[1][1]))
        return super().forward(x, edge_index, edge_attr, return_attention_weights)

    def _project(self, x: tuple[Tensor, Tensor]) -> list[Tensor | None]:
        # [num_nodes, heads, channels]; root is added to the output of each node
        of_keys, of_queries = x
        key, value = self.lin_key(of_keys), self.lin_value(of_keys)
        query = self.lin_query(of_queries)
        root = self.lin_skip(of_queries) if self.root_weight else None
        by_head = -1, self.heads, self.out_channels
        return [*(nodes.view(by_head) for nodes in (key, value, query)), root]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, edges: SortedEdges,
                edge_attr: Tensor | None) -> Tensor:
        dropout_p = self.dropout if self.training else 0.
        if edge_attr is None:
            terms = LogitTerms(scale=None, dropout_p=dropout_p)
            return drive(query, key, value, edges.graph, terms, 1, 0., backend=self.backend)[0]
        _check_rows(edge_attr, edges.graph.num_edges)
        projection = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        projection = projection.to(query.dtype)  # the dtype under autocast
        return functional.edge_feature_attention(query, key, value, edges.graph,
                                                 edges.sort(edge_attr).to(query.dtype), projection,
                                                 dropout_p=dropout_p, backend=self.backend)

    def _with_root(self, out: Tensor, root: Tensor | None) -> Tensor:
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        if root is None:
            return out
        if self.lin_beta is None:
            # Nothing else refers to the output of a plain projection, so it may be changed in
            # place, which saves a tensor of this size.
            is_own = root._base is None and _is_product(self.lin_skip)
            return root.add_(out) if is_own else root + out
        share = self.lin_beta(torch.cat([out, root, out - root], dim=-1)).sigmoid()
        return share * root + (1 - share) * out

    def _edge_attr(self, edge_index: Edges, edge_attr: Tensor | None) -> Tensor | None:
        if edge_attr is None and self.edge_dim is not None:
            values = edge_values_of(edge_index)
            edge_attr = values if values is not None and values.dim() == 2 else None
            if edge_attr is None:
                raise ValueError(f"'edge_attr' must be given, because the layer was built with "
                                 f"edge_dim={self.edge_dim}")
        if edge_attr is None:
            return None
        check_floating(edge_attr=edge_attr)
        if self.edge_dim is None:
            raise ValueError(f"'edge_attr' must be omitted, because the layer was built with "
                             f"edge_dim=None (got the shape {list(edge_attr.shape)}); build it "
                             f"with edge_dim={edge_attr.size(-1) if edge_attr.dim() else 1}")
        check_shape('edge_attr', edge_attr, ('num_edges', self.edge_dim),
                    f', because the layer was built with edge_dim={self.edge_dim}')
        return edge_attr


def _check_rows(edge_attr: Tensor, num_edges: int) -> None:
    if len(edge_attr) != num_edges:
        raise ValueError(f"'edge_attr' must have {num_edges} rows, one for each edge (got "
                         f"{len(edge_attr)} rows)")


def _are_few(edges: Edges) -> bool:
    # To sort so few edges would take a GPU longer than PyG's messages do.
    return (isinstance(edges, Tensor) and edges.device.type == 'cuda'
            and edges.layout == torch.strided and edges.dim() == 2
            and edges.size(1) <= FEW_EDGES)


def _check_nodes(x: Tensor, linear: nn.Module) -> None:
    check_floating(x=x)
    channels = getattr(linear, 'in_channels', -1)
    check_shape('x', x, ('num_nodes', 'channels' if channels == -1 else channels))
    check_place('x', x, linear)


def _is_product(linear: nn.Module) -> bool:
    # Weight and bias can be used without calling the layer: no hooks, pruning or other changes.
    return type(linear) in (nn.Linear, Linear) and not _has_any_global_hook() and not (
        linear._forward_pre_hooks or linear._forward_hooks or linear._backward_pre_hooks
        or linear._backward_hooks or 'forward' in linear.__dict__)
