"""A graph transformer over the graphs of a PyG batch."""

from __future__ import annotations

import copy
from itertools import cycle, islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    BatchNorm,
    GINConv,
    GINEConv,
    MaxAggregation,
    MeanAggregation,
    MessagePassing,
    ResGatedGraphConv,
    SumAggregation,
)
from torch_geometric.nn.resolver import normalization_resolver

from graphattn._checks import (
    MAX_SIDE,
    check_bool,
    check_choice,
    check_dropout,
    check_floating,
    check_integers,
    check_kind,
    check_on,
    check_place,
    check_range,
    check_sides,
    check_size,
)
from graphattn._explained import Explained
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers import GraphAttention, GraphGPSConv, GraphTransformerConv
from graphattn.layers.graph_attention import sources_of_layers
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource

POOLING = {'mean': MeanAggregation, 'sum': SumAggregation, 'max': MaxAggregation}
Local = Literal['gin', 'gated_gcn', 'transformer']


class FeatureEncoder(nn.Module, Explained):
    """Embed the features of nodes or of edges.

    Args:
        features (int or list of int): Number of real features, which a linear layer embeds; or the
            number of categories of each categorical feature, whose embeddings are added.
        channels (int): Size of the result.
        name (str): Name of ``features`` in error messages.

    Raises:
        TypeError, ValueError: A number is not a positive int.

    Example:
        >>> import torch
        >>> from graphattn.models import FeatureEncoder
        >>> atoms = torch.tensor([[6, 1], [8, 0]])  # element and charge
        >>> FeatureEncoder([100, 3], 16)(atoms).shape
        torch.Size([2, 16])
    """

    def __init__(self, features: int | list[int], channels: int, name: str = 'features'):
        super().__init__()
        check_sides(channels=channels)
        self.features, self.channels = features, channels
        if isinstance(features, list):
            for size in features or [0]:
                check_size(name, size, at_least=1, at_most=MAX_SIDE)
            self.linear = None
            self.embeddings = nn.ModuleList(nn.Embedding(size, channels) for size in features)
        else:
            check_sides(**{name: features})
            self.linear, self.embeddings = nn.Linear(features, channels), None

    def forward(self, x: Tensor, name: str = 'x') -> Tensor:
        """Return the embedding of each node, or of each edge.

        Args:
            x (Tensor): Real features ``[num_nodes, features]``; or categories, int64
                ``[num_nodes, num_categorical]``. If there is only one categorical feature, ``x``
                may be ``[num_nodes]``. For edges, ``num_nodes`` is the number of edges.
            name (str): Name of ``x`` in error messages.

        Returns:
            Tensor ``[num_nodes, channels]``.

        Raises:
            ValueError: ``x`` has another shape, or a category is out of range.
        """
        if self.linear is not None:
            check_floating(**{name: x})
            check_place(name, x, self.linear)
        else:
            check_integers(name, x)
            check_on(name, x, self.embeddings[0].weight.device, 'the layer')
        x = x.unsqueeze(1) if x.dim() == 1 else x
        width = self.features if self.embeddings is None else len(self.features)
        if x.dim() != 2 or x.size(1) != width:
            raise ValueError(f"'{name}' must have {width} columns, one for each feature (got shape "
                             f"{tuple(x.shape)})")
        if self.linear is not None:
            return self.linear(x)
        return torch.stack([self._embedded(x[:, i], i, name) for i in range(width)]).sum(dim=0)

    def _embedded(self, category: Tensor, i: int, name: str) -> Tensor:
        size = self.features[i]
        if category.numel() and not 0 <= int(category.min()) <= int(category.max()) < size:
            raise ValueError(f"column {i} of '{name}' must contain categories from 0 to {size - 1} "
                             f"(got {int(category.min())} to {int(category.max())})")
        return self.embeddings[i](category)

    def extra_repr(self) -> str:
        return f'{self.features}, {self.channels}'


class GraphTransformer(nn.Module, Explained):
    """Embed the nodes and edges of graphs, apply layers of messages and attention, and compute an
    output for each node or each graph.

    Each layer is a :class:`graphattn.layers.GraphGPSConv`, which combines messages along the edges
    of the data with attention among the nodes of each graph. With ``source='Full()'``, the model is
    GPS. With ``source='exphormer'``, ``joins_edges=True`` and ``virtual_nodes=1``, the model is
    like Exphormer: it attends along the edges of a directed expander, along the edges of the data,
    and from and to a virtual node, without embeddings of the types of edges.

    Args:
        features (int or list of int): Features of nodes, see :class:`FeatureEncoder`.
        out_channels (int): Size of the output: the number of classes, labels or values.
        channels (int): Size of each node.
        heads (int): Number of attention heads.
        num_layers (int): Number of layers.
        source (GraphSource, Pattern, str or list, optional): Source of the edges of attention, or a
            list with a source for each layer. Every layer gets its own copy of its source, with new
            parameters. Without ``source`` and ``attention``, layers only pass messages.
        attention (nn.Module, optional): Module to use instead of graph attention, see
            :class:`graphattn.layers.GraphGPSConv`.
        joins_edges (bool): Whether attention uses the edges of the data too
            (:class:`graphattn.sources.StructureSource`).
        virtual_nodes (int): Number of learned nodes that are added before the nodes of each graph.
            Only attention uses virtual nodes; messages and pooling leave them out.
        local (str, optional): Layer that computes messages: ``'gin'`` (PyG's ``GINEConv``, or
            ``GINConv`` without features of edges), ``'gated_gcn'`` (PyG's ``ResGatedGraphConv``),
            ``'transformer'`` (:class:`graphattn.layers.GraphTransformerConv`), or ``None`` for no
            messages.
        edge_features (int or list of int, optional): Features of edges, which messages use, see
            :class:`FeatureEncoder`.
        encodings (dict, optional): Sizes of further node attributes, by name, such as
            ``{'random_walk_pe': 16}``. These attributes are batch-normalised, projected to
            ``channels``, and added to the embeddings of the nodes.
        level (str): Whether the output is for each node (``'node'``) or for each graph
            (``'graph'``).
        pooling (str): Pooling of the nodes of a graph: ``'mean'``, ``'sum'`` or ``'max'``.
        dropout (float): Dropout in each layer.
        attention_dropout (float): Dropout on the attention weights.
        norm (str): Norm of the layers, by its name in PyG.

    Raises:
        TypeError, ValueError: An argument is of the wrong type or out of range, or both ``source``
            and ``attention`` are given.

    Source: Rampášek et al., "Recipe for a General, Powerful, Scalable Graph Transformer" (2022);
    Shirzad et al., "Exphormer" (2023).

    Example:
        >>> import torch
        >>> from torch_geometric.data import Batch, Data
        >>> from graphattn.models import GraphTransformer
        >>> path = Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        >>> model = GraphTransformer(5, 2, channels=16, heads=4, num_layers=2, source='Full()')
        >>> model(Batch.from_data_list([path, path])).shape
        torch.Size([6, 2])
    """

    def __init__(
        self,
        features: int | list[int],
        out_channels: int,
        *,
        channels: int,
        joins_edges: bool = False,
        virtual_nodes: int = 0,
        local: Local | None = 'gin',
        edge_features: int | list[int] | None = None,
        encodings: dict[str, int] | None = None,
        level: Literal['node', 'graph'] = 'node',
        pooling: Literal['mean', 'sum', 'max'] = 'mean',
        **layers: Any,
    ):
        super().__init__()
        check_sides(out_channels=out_channels, channels=channels)
        check_bool(joins_edges=joins_edges)
        check_size('virtual_nodes', virtual_nodes, at_most=MAX_SIDE)
        check_choice('level', level, ('node', 'graph'))
        check_choice('pooling', pooling, POOLING)
        if local is not None:
            check_choice('local', local, get_args(Local))
        self.out_channels, self.channels, self.level = out_channels, channels, level
        self.joins_edges = joins_edges
        self.node_encoder = FeatureEncoder(features, channels)
        self.edge_encoder = None
        if edge_features is not None and local is not None:
            self.edge_encoder = FeatureEncoder(edge_features, channels, 'edge_features')
        if encodings is not None:
            check_kind('encodings', encodings, dict)
        self.encodings = dict(encodings or {})
        if self.encodings:
            check_sides(**self.encodings)
            size = sum(self.encodings.values())
            self.encoding_norm = BatchNorm(size, allow_single_element=True)
            self.encoding = nn.Linear(size, channels)
        self.virtual_nodes = nn.Embedding(virtual_nodes, channels) if virtual_nodes else None
        self._add_layers(channels, local, **layers)
        self.pool = POOLING[pooling]() if level == 'graph' else None
        self.head = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(),
                                  nn.Linear(channels, out_channels))

    def _add_layers(
        self, channels: int, local: Local | None, *, heads: int, num_layers: int,
        source: GraphSource | Pattern | list[GraphSource | Pattern | str] | str | None = None,
        attention: nn.Module | None = None, dropout: float = 0., attention_dropout: float = 0.,
        norm: str = 'batch_norm',
    ) -> None:
        check_sides(heads=heads, num_layers=num_layers)
        check_dropout(dropout=dropout, attention_dropout=attention_dropout)
        check_kind('norm', norm, str)
        try:
            is_batch_norm = isinstance(normalization_resolver(norm, channels), BatchNorm)
        except ValueError as error:
            raise ValueError(f"'norm' must be the name of a norm of PyG, such as 'batch_norm' (got "
                             f"{norm!r})"
                             ) from error
        if source is not None and attention is not None:
            raise ValueError("'attention' must be None if 'source' is given (got both); omit one "
                             "of them")
        sources = sources_of_layers(source, heads, num_layers)
        for one in sources if self.joins_edges else ():
            if not hasattr(one, '__or__'):
                raise ValueError(f"'joins_edges' must be False unless 'source' can join the edges "
                                 f"of the data (got {type(one).__name__} as 'source'); omit "
                                 f"'joins_edges'")
        if local == 'transformer' and channels % heads:
            raise ValueError(f"'channels' must be a multiple of 'heads' (got {channels} channels "
                             f"and {heads} heads)")
        if local is None and source is None and attention is None:
            raise ValueError("'local', 'source' or 'attention' must be given (got none of them); "
                             "pass source='Full()' for full attention")
        # A batch may have a single node, for which PyG's batch norm otherwise raises an error.
        norm_kwargs = {'allow_single_element': True} if is_batch_norm else None
        self.layers = nn.ModuleList()
        for one in islice(cycle(sources), num_layers):
            conv = None if local is None else _local(local, channels, heads,
                                                     self.edge_encoder is not None)
            own = copy.deepcopy(attention)
            if one is not None:
                own = GraphAttention(channels, heads, copy.deepcopy(one),
                                     dropout=attention_dropout)
                own.source.reset_parameters()
            elif own is not None:
                own.reset_parameters()
            attn_type = None if own is None else 'multihead'
            self.layers.append(GraphGPSConv(channels, conv, dropout=dropout, norm=norm,
                                            norm_kwargs=norm_kwargs, attn_type=attn_type,
                                            attention=own))

    _options_of = _add_layers,

    def forward(self, data: Data, *, return_graphs: bool = False
                ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Return the output of each node or graph.

        Args:
            data (Data): A graph, or a batch of graphs, with ``x``, ``edge_index``, the encodings
                and, if the model has ``edge_features``, ``edge_attr``.
            return_graphs (bool): Also return a list with the graph of attention of each layer.

        Returns:
            Tensor ``[num_nodes, out_channels]``, or ``[num_graphs, out_channels]`` if ``level`` is
            ``'graph'``. With ``return_graphs``, a pair of this tensor and the list of graphs.

        Raises:
            TypeError: ``data`` is not a PyG ``Data`` or ``Batch``.
            ValueError: An attribute is missing or has another shape.
        """
        check_kind('data', data, Data)
        check_bool(return_graphs=return_graphs)
        x, edge_index, batch = self._embed(data), self._attribute(data, 'edge_index'), data.batch
        real = slice(None)
        if self.virtual_nodes is not None:
            check_range(edge_index, len(x), len(x))
            x, batch, real = self._with_virtual_nodes(x, data)
            edge_index = real[edge_index]
        kwargs = {}
        if self.edge_encoder is not None:
            kwargs['edge_attr'] = self.edge_encoder(self._attribute(data, 'edge_attr'), 'edge_attr')
        graphs = []
        for layer in self.layers:
            source = layer.attn.source | edge_index if self.joins_edges else None
            x, graph = layer(x, edge_index, batch, source=source, return_graph=True, **kwargs)
            graphs += [] if graph is None else [graph]
        x = x[real]
        if self.pool is not None:
            x = self.pool(x, data.batch, dim_size=1 if data.batch is None else data.num_graphs)
        out = self.head(x)
        return (out, graphs) if return_graphs else out

    def _embed(self, data: Data) -> Tensor:
        x = self.node_encoder(self._attribute(data, 'x'))
        if not self.encodings:
            return x
        parts = [self._attribute(data, name).reshape(len(x), -1) for name in self.encodings]
        for (name, size), part in zip(self.encodings.items(), parts):
            if part.size(1) != size:
                raise ValueError(f"'{name}' must have {size} columns, as the model was built for "
                                 f"(got {part.size(1)})")
        encoding = torch.cat(parts, dim=1).to(self.encoding.weight.dtype)
        return x + self.encoding(self.encoding_norm(encoding))

    def _with_virtual_nodes(self, x: Tensor, data: Data) -> tuple[Tensor, Tensor, Tensor]:
        """Insert virtual nodes before the nodes of each graph in ``x``."""
        # Returns features [num_all, channels], the graph of each node [num_all], and the index
        # of each node of x among them [num_nodes].
        virtual = self.virtual_nodes.weight
        batch = x.new_zeros(len(x), dtype=torch.long) if data.batch is None else data.batch
        graphs = torch.arange(1 if data.batch is None else data.num_graphs, device=x.device)
        every = torch.cat([graphs.repeat_interleave(len(virtual)), batch])
        order = every.argsort(stable=True)
        x = torch.cat([virtual.repeat(len(graphs), 1), x])
        return x[order], every[order], order.argsort()[len(every) - len(batch):]

    def _attribute(self, data: Data, name: str) -> Tensor:
        value = getattr(data, name, None)
        if not isinstance(value, Tensor):
            advice = ("; apply a transform first, such as PyG's AddRandomWalkPE"
                      if name in self.encodings else '')
            raise ValueError(f"'data' must have the attribute {name!r} (got {data}){advice}")
        return value


def _local(name: Local, channels: int, heads: int, has_edge_features: bool) -> MessagePassing:
    if name == 'transformer':
        return GraphTransformerConv(channels, channels // heads, heads,
                                    edge_dim=channels if has_edge_features else None)
    if name == 'gated_gcn':
        return ResGatedGraphConv(channels, channels,
                                 edge_dim=channels if has_edge_features else None)
    mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))
    return GINEConv(mlp) if has_edge_features else GINConv(mlp)
