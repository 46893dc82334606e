"""A transformer encoder over ragged batches of tokens."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial, wraps
from itertools import cycle, islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from graphattn._checks import (
    MAX_SIDE,
    check_bool,
    check_choice,
    check_dropout,
    check_features,
    check_ids,
    check_number,
    check_ptr,
    check_sides,
    check_size,
)
from graphattn._explained import Explained
from graphattn._tensors import host_copy, is_traced
from graphattn.functional.drive import LOCAL, Placement
from graphattn.functional.shard import check_shard
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.graphs.pyg_data import ptr_of
from graphattn.layers import EncoderLayer
from graphattn.layers.checkpointed import checkpointed
from graphattn.layers.graph_attention import sources_of_layers
from graphattn.layers.rotary import PositionTable, RotaryPositions, angles
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource


def accepts_data(forward: Callable) -> Callable:
    """Decorate ``forward(self, tokens, ptr, ...)`` to accept a PyG ``Data`` or ``Batch`` too."""
    # Its x has the tokens, and each of its graphs is a sequence.
    @wraps(forward)
    def run(self: Any, tokens: Tensor | Data, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tokens, Data | HeteroData):
            return forward(self, tokens, *args, **kwargs)
        if args or 'ptr' in kwargs:
            raise ValueError("'ptr' must be omitted if 'tokens' is a PyG Data or Batch, because "
                             "each graph of the Batch is a sequence")
        return forward(self, *_sequences_of(tokens), **kwargs)

    return run


def _sequences_of(data: Data) -> tuple[Tensor, Tensor]:
    if isinstance(data, HeteroData):
        raise TypeError("'tokens' must be a PyG Data or Batch (got HeteroData); pass the 'x' and "
                        "'ptr' of one node type, or let one type attend to another by the 'memory' "
                        "and 'graph' of GraphAttention, with BipartiteGraph.from_data")
    if data.x is None:
        raise ValueError(f"'tokens' must have the attribute 'x' with ids or features (got {data}); "
                         f"set data.x")
    return data.x, ptr_of(data, data.x.device)


class Encoder(nn.Module, Explained):
    """Embeddings of tokens, positions and segments, followed by a stack of :class:`EncoderLayer`.

    Args:
        source (GraphSource, Pattern, str or list, optional): Source of the edges: a graph source, a
            pattern, or the expression of a pattern; or a list with a source for each layer, such as
            windows that dilate. If omitted, every call needs a graph. Every layer gets its own copy
            of its source, with new parameters, unless ``share_source`` is set.
        attention (nn.Module, optional): Module to use instead of graph attention, see
            :class:`EncoderLayer`. Every layer gets its own copy of the module, with new parameters.
        num_tokens (int): Size of the vocabulary; 0 if inputs are always features.
        max_length (int): Maximum length of a sequence.
        channels (int): Size of each token.
        heads (int): Number of attention heads.
        num_layers (int): Number of layers.
        positions (str or list of int): ``'learned'``: learned embeddings of positions.
            ``'sinusoidal'``: fixed embeddings (:class:`SinusoidalPositions`). ``'none'``: no
            embeddings of positions. ``'rotary'``: queries and keys are rotated in each layer
            (:class:`graphattn.layers.RotaryPositions`), but sources get them unrotated, so edges
            that depend on queries and keys do not depend on positions. A list contains the sides of
            a grid, such as ``[32, 32, 3]`` for the rows, columns and colours of an image; the
            embedding of a cell is then the sum of learned embeddings of its row, column and so on
            (:class:`GridPositions`).
        embedding_std (float): Standard deviation of initial embeddings, 0.02 in BERT.
        padding_token (int, optional): Id of tokens that the encoder leaves out. These tokens count
            in the positions of the other tokens, and have output 0. The protocol of Nyströmformer
            and SBM-Transformer leaves out black pixels in this way.
        num_segments (int): Number of segments that a sequence may consist of; 0 if there are no
            embeddings of segments. BERT has 2 segments, the sentences A and B.
        dropout (float): Dropout on embeddings, after attention and in feed-forward networks.
        norm_first (bool): If set, layers are pre-norm, and a norm follows the last layer. Otherwise
            layers are post-norm, and a norm follows the embeddings, as in BERT.
        norm_eps (float): Added to the variance in layer norms, 1e-12 in BERT.
        share_source (bool): Whether all layers share ``source`` itself instead of copies. The
            source is called once per pass, in the first layer, and all layers attend along its
            graph, as with SparseBERT's masks.
        causal (bool): Whether tokens must not attend to later tokens. If set, edges come from the
            causal form of the source, see :meth:`graphattn.sources.GraphSource.causal`. The
            parameters have the same names in both cases.
        checkpoint_layers (bool): Whether to save memory by storing only the input of each layer,
            and a shared graph, for the backward pass. The backward pass runs each layer again with
            the same dropout and the same drawn edges, so gradients are the same bit for bit.
        **layers: Further options of :class:`EncoderLayer`, such as ``head_channels``,
            ``hidden_channels``, ``attention_dropout``, ``activation``, ``hops``, ``teleport`` or
            ``backend``.

    Raises:
        ValueError: Both ``source`` and ``attention`` are given; the given one requires another
            number of heads or shorter sequences; a list has another number of sources than layers;
            or a source has no causal form.

    Example:
        >>> import torch
        >>> from graphattn.models import Encoder
        >>> from graphattn.patterns import SlidingWindow
        >>> from graphattn.sources import PatternSource
        >>> encoder = Encoder(PatternSource(SlidingWindow(2)), num_tokens=100, max_length=16,
        ...                   channels=32, heads=4, num_layers=2)
        >>> tokens, ptr = torch.randint(100, (20,)), torch.tensor([0, 4, 20])  # two sequences
        >>> x, graphs = encoder(tokens, ptr, return_graphs=True)
        >>> x.shape, graphs[0]
        (torch.Size([20, 32]), BipartiteGraph(num_queries=20, num_keys=20, num_edges=88, \
num_segments=2, density=32.4%))
        >>> from torch_geometric.data import Batch, Data
        >>> batch = Batch.from_data_list([Data(x=tokens[:4]), Data(x=tokens[4:])])
        >>> torch.equal(encoder(batch), x)
        True
    """

    def __init__(
        self,
        source: GraphSource | Pattern | list[GraphSource | Pattern | str] | str | None = None,
        *,
        num_tokens: int,
        max_length: int,
        channels: int,
        attention: nn.Module | None = None,
        positions: Literal['learned', 'sinusoidal', 'none', 'rotary'] | list[int] = 'learned',
        embedding_std: float = 0.02,
        padding_token: int | None = None,
        num_segments: int = 0,
        checkpoint_layers: bool = False,
        **layers: Any,
    ):
        super().__init__()
        check_sides(max_length=max_length, channels=channels)
        check_size('num_tokens', num_tokens, at_most=MAX_SIDE)
        check_size('num_segments', num_segments, at_most=MAX_SIDE)
        check_bool(checkpoint_layers=checkpoint_layers)
        if not isinstance(positions, list):
            check_choice('positions', positions, (*EMBEDDINGS, 'rotary'))
        check_number('embedding_std', embedding_std, 'positive and finite')
        if padding_token is not None:
            check_size('padding_token', padding_token, at_most=num_tokens - 1)
        if positions == 'rotary' and attention is not None:
            raise ValueError("'positions' must not be 'rotary' with 'attention', because the "
                             "module 'attention' computes its own queries and keys; pass another "
                             "value of 'positions', or omit 'attention'")
        self.channels = channels
        self.padding_token = padding_token
        self.checkpoint_layers = checkpoint_layers
        self.token_embedding = nn.Embedding(num_tokens, channels) if num_tokens else None
        if positions == 'rotary':
            self.register_module('position_embedding', None)  # needs the size of the heads
        elif isinstance(positions, list):
            self.position_embedding = GridPositions(positions, channels)
            if self.position_embedding.num_embeddings < max_length:
                raise ValueError(f"'max_length' must be at most "
                                 f"{self.position_embedding.num_embeddings}, the number of "
                                 f"positions of the grid {positions} (got {max_length})")
        else:
            self.position_embedding = EMBEDDINGS[positions](max_length, channels)
        self.segment_embedding = nn.Embedding(num_segments, channels) if num_segments else None
        limited = self._add_layers(source, attention, channels, **layers)
        longest = min((one.max_length for one in limited
                       if getattr(one, 'max_length', None) is not None), default=max_length)
        if longest < max_length:
            raise ValueError(f"'max_length' must be at most {longest}, the 'max_length' of "
                             f"'{'source' if attention is None else 'attention'}' (got "
                             f"{max_length})")
        if positions == 'rotary':
            size = self.layers[0].attention.head_channels
            self.position_embedding = RotaryPositions(max_length, size)
        for module in (self.token_embedding, self.position_embedding, self.segment_embedding):
            for embedding in module.modules() if module is not None else ():
                if isinstance(embedding, nn.Embedding):
                    nn.init.normal_(embedding.weight, std=embedding_std)

    def _add_layers(
        self, source: GraphSource | Pattern | list[GraphSource | Pattern | str] | str | None,
        attention: nn.Module | None, channels: int, *, heads: int, num_layers: int,
        share_source: bool = False, causal: bool = False, dropout: float = 0.,
        norm_first: bool = True, norm_eps: float = 1e-5, **layer: Any,
    ) -> list[nn.Module | None]:
        # returns the sources or the other attention modules of the layers
        check_sides(num_layers=num_layers)
        check_dropout(dropout=dropout)
        check_bool(share_source=share_source, causal=causal)
        sources = [source]
        if attention is None:
            if causal and source is None:
                raise ValueError("'causal' must be False for an encoder with source=None (got "
                                 "True); pass causal graphs as 'graph' in each call instead")
            if share_source and isinstance(source, list | tuple):
                raise ValueError("'share_source' must be False if 'source' is a list, in which "
                                 "each layer has its own source (got True)")
            sources = sources_of_layers(source, heads, num_layers, causal)
        for option, is_on in (('share_source', share_source), ('causal', causal)):
            if is_on and attention is not None:
                raise ValueError(f"'{option}' must be False with 'attention', because the module "
                                 f"'attention' has no source (got True)")
        self.heads, self.norm_first, self.causal = heads, norm_first, causal
        self.dropout = nn.Dropout(dropout)
        # A shared source belongs to the encoder, so that checkpoints contain its parameters once.
        self.source = sources[0] if share_source else None
        self.layers = nn.ModuleList(
            EncoderLayer(channels, heads, None if share_source else copy.deepcopy(own),
                         attention=copy.deepcopy(attention), dropout=dropout,
                         norm_first=norm_first, norm_eps=norm_eps, **layer)
            for own in islice(cycle(sources), num_layers))
        self.activation = self.layers[0].activation
        self.norm = nn.LayerNorm(channels, eps=norm_eps)
        copies = [layer.attention.source if attention is None else layer.attention
                  for layer in self.layers]
        for module in copies:
            if module is not None:
                module.reset_parameters()
        return [self.source, *copies]

    _options_of = _add_layers, EncoderLayer

    @accepts_data
    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        placement: Placement = LOCAL,
        segments: Tensor | None = None,
        graph: BipartiteGraph | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Encode the tokens of all sequences.

        Args:
            tokens (Tensor or Data): Ids of the tokens of all sequences, one after the other, int64
                ``[num_tokens]``; or features that replace the embeddings of tokens, ``[num_tokens,
                channels]``, such as patches of images. If ``tokens`` is a PyG ``Data`` or
                ``Batch``, its attribute ``x`` has the ids or features, each of its graphs is a
                sequence, and ``ptr`` must be omitted.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
            placement (Placement, optional): Where keys of other tokens lie, as in
                :meth:`GraphAttention.forward <graphattn.layers.GraphAttention.forward>`.
            segments (Tensor, optional): The segment of each token, int64 ``[num_tokens]``. If
                omitted, all tokens are in segment 0, as in BERT.
            graph (BipartiteGraph, optional): Graph that all layers attend along instead of graphs
                from sources, as in :meth:`GraphAttention.forward
                <graphattn.layers.GraphAttention.forward>`.
            generator (torch.Generator, optional): Random generator of sources that draw edges;
                torch's default generator if omitted.
            return_graphs (bool): Also return a list of the graphs or pair masks of the layers that
                have one.

        Returns:
            Tensor ``[num_tokens, channels]``; with ``return_graphs``, a pair of this tensor and the
            list of graphs.

        Raises:
            ValueError: An id is outside the vocabulary or the segments, a sequence is longer than
                ``max_length``, or ``ptr`` does not mark the sequences of ``tokens``.
        """
        check_bool(return_graphs=return_graphs)
        x = self._features(tokens)
        positions = self._positions(tokens, ptr, placement)
        x = self._embed(x, positions, segments)
        rotation, at = self.position_embedding(positions) if self._is_rotary else None, None
        if self.padding_token is not None:
            is_token = tokens != self.padding_token
            at = is_token.nonzero().flatten()  # computed once for the uses below
            if placement is not LOCAL:
                raise ValueError("the model must be built with padding_token=None for a "
                                 "'placement'; remove the padding from the sequences before the "
                                 "call")
            x, ptr = x[at], torch.cat([ptr[:1], is_token.cumsum(0)])[ptr]
            rotation = None if rotation is None else rotation[at]
            if graph is not None:
                raise ValueError("'graph' must be None for a model with 'padding_token', because "
                                 "the model removes padding tokens; build the model without "
                                 "'padding_token', and remove padding from 'tokens' and 'graph' "
                                 "before the call")
        graphs, shared = [], graph
        for layer in self.layers:
            run = partial(checkpointed, layer) if self.checkpoint_layers else layer
            x, along = run(x, ptr, placement=placement, source=self.source, graph=shared,
                           generator=generator, rotation=rotation, return_graph=True)
            graphs += [] if along is None else [along]
            shared = graph if self.source is None else along
        x = self.norm(x) if self.norm_first else x
        if at is not None:
            x = x.new_zeros(len(tokens), self.channels).index_copy(0, at, x)
        return (x, graphs) if return_graphs else x

    def _embed(self, x: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        if not self._is_rotary:
            x = x + self.position_embedding(positions)
        if self.segment_embedding is not None:
            if segments is None:
                segments = torch.zeros(len(x), dtype=torch.long, device=x.device)
            check_ids('segments', segments, _size_of(self.segment_embedding), self._device(x))
            if len(segments) != len(x):
                raise ValueError(f"'segments' must have {len(x)} entries, one for each token "
                                 f"(got {len(segments)})")
            x = x + self.segment_embedding(segments)
        elif segments is not None:
            raise ValueError("'segments' must be None for a model that was built without "
                             "'num_segments'; build the model with num_segments=2, for instance")
        return self.dropout(x if self.norm_first else self.norm(x))

    def _features(self, tokens: Tensor) -> Tensor:
        if not isinstance(tokens, Tensor) or not tokens.is_floating_point():
            if self.token_embedding is None:
                raise TypeError("'tokens' must be floating features for a model that was built "
                                "without 'num_tokens'; to pass ids, build the model with "
                                "'num_tokens'")
            check_ids('tokens', tokens, _size_of(self.token_embedding), self._device(tokens))
            return self.token_embedding(tokens)
        if self.padding_token is not None:
            raise TypeError(f"'tokens' must be int64 ids for a model with 'padding_token' (got "
                            f"{tokens.dtype})")
        check_features(tokens, self.channels, self.norm, 'tokens')
        return tokens

    def _device(self, tokens: Tensor) -> torch.device:
        # Another module without a weight may have replaced the norm.
        weight = getattr(self.norm, 'weight', None)
        return weight.device if isinstance(weight, Tensor) else getattr(tokens, 'device', None)

    @property
    def _is_rotary(self) -> bool:
        return isinstance(self.position_embedding, RotaryPositions)

    def _positions(self, tokens: Tensor, ptr: Tensor, placement: Placement) -> Tensor:
        if placement is not LOCAL:
            shard = check_shard(placement)
            self._check_lengths(host_copy(shard.ptr).diff())
            return shard.positions()
        num_tokens = tokens.size(0)  # len() would be a constant in exported code
        check_ptr('ptr', ptr, num_tokens, tokens.device)
        length = ptr.diff()
        if not is_traced(ptr):
            self._check_lengths(host_copy(ptr).diff())
        start = ptr[:-1].repeat_interleave(length, output_size=num_tokens)
        return torch.arange(num_tokens, device=tokens.device) - start

    def _check_lengths(self, length: Tensor) -> None:
        max_length = _size_of(self.position_embedding)
        if length.numel() and int(length.max()) > max_length:
            raise ValueError(f"'ptr' must mark sequences of at most {max_length} tokens, the "
                             f"'max_length' of the model (got {int(length.max())}); truncate the "
                             f"sequences, or build the model with a larger 'max_length'")


def _size_of(embedding: nn.Module) -> float:
    # Any id is accepted by a module that has no such number.
    return getattr(embedding, 'num_embeddings', math.inf)


class SinusoidalPositions(PositionTable):
    """Fixed sinusoidal embeddings of positions (Vaswani et al., 2017, Sec. 3.5)."""

    def __init__(self, num_embeddings: int, channels: int):
        check_sides(num_embeddings=num_embeddings, channels=channels)
        super().__init__(num_embeddings, channels)

    def numbers(self) -> Tensor:
        # float64 [num_embeddings, channels]
        angle = angles(self.num_embeddings, self.channels)
        return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :self.channels]

    def forward(self, position: Tensor) -> Tensor:
        return self.table[position]


class GridPositions(nn.Module):
    """Learned embeddings of the cells of a grid, sums of those of its row, column and so on."""

    # The last coordinate changes fastest. Child et al., "Generating Long Sequences with Sparse
    # Transformers" (2019), Sec. 5.3, has rows, columns and colours of images.

    def __init__(self, sides: list[int], channels: int):
        super().__init__()
        if not sides:
            raise ValueError("'positions' must contain at least one side of the grid, such as [32, "
                             "32] (got [])")
        for side in sides:
            check_size('positions', side, 1, MAX_SIDE)
        self.sides = tuple(sides)
        self.num_embeddings = math.prod(sides)
        self.along = nn.ModuleList(nn.Embedding(side, channels) for side in sides)

    def forward(self, position: Tensor) -> Tensor:
        return sum(embedding(position // math.prod(self.sides[axis + 1:]) % side)
                   for axis, (side, embedding) in enumerate(zip(self.sides, self.along)))


class _NoPositions(nn.Module):
    def __init__(self, num_embeddings: int, channels: int):
        super().__init__()
        self.num_embeddings = num_embeddings

    def forward(self, position: Tensor) -> float:
        return 0.


EMBEDDINGS = {'learned': nn.Embedding, 'sinusoidal': SinusoidalPositions, 'none': _NoPositions}


def check_encoder(encoder: nn.Module) -> None:
    # Also accepts wrappers such as the modules of torch.compile.
    if not isinstance(encoder, nn.Module) or not hasattr(encoder, 'token_embedding'):
        raise TypeError(f"'encoder' must be an Encoder (got {type(encoder).__name__})")


def vocabulary_size(encoder: nn.Module) -> int:
    """Return the number of ids of the token embedding, which an adapter may wrap."""
    check_encoder(encoder)
    if encoder.token_embedding is None:
        raise ValueError("'encoder' must have a vocabulary to predict tokens (got num_tokens=0); "
                         "build the Encoder with 'num_tokens'")
    for module in encoder.token_embedding.modules():
        if hasattr(module, 'num_embeddings'):
            return module.num_embeddings
    raise TypeError(f"'encoder' must have an nn.Embedding, or an adapter around an nn.Embedding, "
                    f"as token_embedding (got {type(encoder.token_embedding).__name__})")
