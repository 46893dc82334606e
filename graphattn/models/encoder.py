"""A transformer encoder over ragged batches of tokens."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

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
from graphattn._tensors import cache_host_copies, host_copy, is_traced
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers import EncoderLayer
from graphattn.layers.checkpointed import checkpointed
from graphattn.layers.graph_attention import check_source
from graphattn.layers.position_table import PositionTable, angles
from graphattn.layers.rotary import RotaryPositions
from graphattn.models.data import accepts_data
from graphattn.patterns import Pattern
from graphattn.shard import Shard
from graphattn.sources import GraphSource


class Encoder(nn.Module):
    """Token, position and segment embeddings and a stack of :class:`EncoderLayer`.

    Args:
        source (GraphSource, Pattern or str, optional): Source of the edges, a pattern or its
            expression; if omitted, every call needs a graph. Every layer gets its own copy with new
            parameters, unless ``share_source`` is set.
        attention (nn.Module, optional): Module to use instead of graph attention, see
            :class:`EncoderLayer`. Every layer gets its own copy with new parameters.
        num_tokens (int): Size of the vocabulary, 0 if inputs are always features.
        max_length (int): Maximum length of a sequence.
        channels (int): Size of each token.
        heads (int): Number of attention heads.
        num_layers (int): Number of layers.
        head_channels (int, optional): Size of a head, ``channels / heads`` if omitted.
        num_kv_heads (int, optional): Number of heads of keys and values, each shared by ``heads /
            num_kv_heads`` heads of queries; ``heads`` if omitted.
        hidden_channels (int, optional): Hidden size of the feed-forward networks,
            ``4 * channels`` if omitted.
        positions (str or list of int): ``'learned'`` or fixed ``'sinusoidal'`` embeddings of
            positions (:class:`SinusoidalPositions`), ``'none'``, or ``'rotary'``: instead of
            embeddings, queries and keys are rotated in each layer
            (:class:`graphattn.layers.RotaryPositions`). Sources get unrotated queries and keys, so
            block models then do not depend on positions. A list holds the sides of a grid, such as
            ``[32, 32, 3]`` for the rows, columns and colours of an image; learned embeddings along
            each side are added (:class:`GridPositions`).
        embedding_std (float): Standard deviation of initial embeddings. BERT has 0.02.
        padding_token (int, optional): Id of tokens to leave out; they count in the positions of the
            others, and their output is zero. The protocol of Nyströmformer and SBM-Transformer does
            this to black pixels.
        num_segments (int): Number of segments that a sequence may consist of, 0 for none. BERT has
            2, the sentences A and B.
        dropout (float): Dropout on embeddings, after attention and in feed-forward networks.
        attention_dropout (float): Dropout on the attention weights.
        activation (str): Activation of feed-forward networks: ``'gelu'``, its tanh approximation
            ``'gelu_new'``, ``'relu'`` or ``'silu'``.
        norm_first (bool): Pre-norm with a final norm if set; else post-norm, with a norm on the
            embeddings, as in BERT.
        norm_eps (float): Added to the variance in layer norms. BERT has 1e-12.
        share_source (bool): Keep ``source`` itself, not copies. It is called once per pass, in the
            first layer, and all layers attend along its graph, as with SparseBERT's masks.
        causal (bool): Whether no token attends to a later token. Edges come from the causal form of
            the source, see :meth:`graphattn.sources.GraphSource.causal`. Parameters keep their
            names.
        hops (int or float): Number of hops that values travel along the edges in each layer,
            ``math.inf`` for the limit. Diffuser has 5.
        teleport (float or list of float): Share of its own value that a token keeps at each hop,
            one for all hops or one for each. Diffuser has 0.1. One hop without teleport is
            attention.
        learn_teleport (bool): Whether each head learns its own teleport, initially ``teleport``.
        backend (str): Kernel for graphs, see :func:`graphattn.functional.edge_attention`.
        checkpoint_layers (bool): Keep only the input of each layer for the backward pass, and a
            shared graph. The layer then runs again with the same dropout and the same drawn edges,
            so gradients are the same bit for bit.

    Raises:
        ValueError: Both ``source`` and ``attention`` are given, or one of them requires another
            number of heads or shorter sequences, or the source has no causal form.

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
        source: GraphSource | Pattern | str | None = None,
        *,
        num_tokens: int,
        max_length: int,
        channels: int,
        heads: int,
        num_layers: int,
        attention: nn.Module | None = None,
        head_channels: int | None = None,
        num_kv_heads: int | None = None,
        hidden_channels: int | None = None,
        positions: Literal['learned', 'sinusoidal', 'none', 'rotary'] | list[int] = 'learned',
        embedding_std: float = 0.02,
        padding_token: int | None = None,
        num_segments: int = 0,
        dropout: float = 0.,
        attention_dropout: float = 0.,
        activation: str = 'gelu',
        norm_first: bool = True,
        norm_eps: float = 1e-5,
        share_source: bool = False,
        causal: bool = False,
        hops: int | float = 1,
        teleport: float | list[float] = 0.,
        learn_teleport: bool = False,
        backend: str = 'auto',
        checkpoint_layers: bool = False,
    ):
        super().__init__()
        check_sides(max_length=max_length, channels=channels, num_layers=num_layers)
        check_size('num_tokens', num_tokens, at_most=MAX_SIDE)
        check_size('num_segments', num_segments, at_most=MAX_SIDE)
        check_dropout(dropout=dropout, attention_dropout=attention_dropout)
        check_bool(share_source=share_source, causal=causal, checkpoint_layers=checkpoint_layers)
        if not isinstance(positions, list):
            check_choice('positions', positions, (*EMBEDDINGS, 'rotary'))
        check_number('embedding_std', embedding_std, 'positive and finite')
        if padding_token is not None:
            check_size('padding_token', padding_token, at_most=num_tokens - 1)
        if attention is None:
            source = None if source is None else check_source(source, heads)
            if causal and source is None:
                raise ValueError("'causal' must be False for an encoder without a source; pass "
                                 "causal graphs to its calls")
            source = source.causal() if causal else source
        elif positions == 'rotary':
            raise ValueError("'positions' must not be 'rotary' with 'attention', because that "
                             "module computes its own queries and keys")
        for option, is_on in (('share_source', share_source), ('causal', causal)):
            if is_on and attention is not None:
                raise ValueError(f"'{option}' must be False with 'attention', which has no source")
        name, limited = ('source', source) if attention is None else ('attention', attention)
        longest = getattr(limited, 'max_length', None)
        if longest is not None and longest < max_length:
            raise ValueError(f"'max_length' must be at most {longest}, the maximum length of "
                             f"'{name}' (got {max_length})")
        self.channels, self.heads = channels, heads
        self.norm_first = norm_first
        self.activation = activation
        self.padding_token = padding_token
        self.causal = causal
        self.checkpoint_layers = checkpoint_layers
        self.token_embedding = nn.Embedding(num_tokens, channels) if num_tokens else None
        if positions == 'rotary':
            size = channels // heads if head_channels is None else head_channels
            self.position_embedding = RotaryPositions(max_length, size)
        elif isinstance(positions, list):
            self.position_embedding = GridPositions(positions, channels)
            if self.position_embedding.num_embeddings < max_length:
                raise ValueError(f"'max_length' must be at most "
                                 f"{self.position_embedding.num_embeddings}, the size of the grid "
                                 f"{positions} (got {max_length})")
        else:
            self.position_embedding = EMBEDDINGS[positions](max_length, channels)
        self.segment_embedding = nn.Embedding(num_segments, channels) if num_segments else None
        self.dropout = nn.Dropout(dropout)
        # A shared source belongs to the encoder, so that checkpoints hold its parameters once.
        self.source = source if share_source else None
        self.layers = nn.ModuleList(
            EncoderLayer(channels, heads, None if share_source else copy.deepcopy(source),
                         attention=copy.deepcopy(attention), head_channels=head_channels,
                         num_kv_heads=num_kv_heads, hidden_channels=hidden_channels,
                         dropout=dropout, attention_dropout=attention_dropout,
                         activation=activation, norm_first=norm_first, norm_eps=norm_eps, hops=hops,
                         teleport=teleport, learn_teleport=learn_teleport, backend=backend)
            for _ in range(num_layers))
        self.norm = nn.LayerNorm(channels, eps=norm_eps)
        if not share_source and (source is not None or attention is not None):
            for layer in self.layers:
                copied = layer.attention.source if attention is None else layer.attention
                copied.reset_parameters()
        for module in (self.token_embedding, self.position_embedding, self.segment_embedding):
            for embedding in module.modules() if module is not None else ():
                if isinstance(embedding, nn.Embedding):
                    nn.init.normal_(embedding.weight, std=embedding_std)

    @accepts_data
    @cache_host_copies
    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor | Shard,
        *,
        segments: Tensor | None = None,
        graph: BipartiteGraph | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Encode the tokens of all sequences.

        Args:
            tokens (Tensor or Data): Ids of all sequences, one after the other, int64
                ``[num_tokens]``; or features that replace their embeddings, ``[num_tokens,
                channels]``, such as patches of images. A PyG ``Data`` or ``Batch`` holds them in
                ``x``; each of its graphs is a sequence, and ``ptr`` must be omitted.
            ptr (Tensor or Shard): Where each sequence begins, int64 ``[num_sequences + 1]``; or a
                process's part of a batch (:func:`graphattn.distributed.sequence_parallel`).
            segments (Tensor, optional): The segment of each token, int64 ``[num_tokens]``. If
                omitted, all are in segment 0, as in BERT.
            graph (BipartiteGraph, optional): Graph that all layers attend along instead of graphs
                from sources, as in :meth:`GraphAttention.forward
                <graphattn.layers.GraphAttention.forward>`.
            generator (torch.Generator, optional): For sources that draw edges; torch's default
                generator if omitted.
            return_graphs (bool): Also return the graph or pair mask of each layer that has one.

        Returns:
            Tensor ``[num_tokens, channels]``, or a pair of it and the list of graphs.

        Raises:
            ValueError: An id is outside the vocabulary or the segments, a sequence is longer than
                ``max_length``, or ``ptr`` does not mark the sequences of ``tokens``.
        """
        check_bool(return_graphs=return_graphs)
        x, rotation = self._embed(tokens, ptr, segments), self._rotation(tokens, ptr)
        at = None
        if self.padding_token is not None:
            is_token = tokens != self.padding_token
            at = is_token.nonzero().flatten()  # computed once for the uses below
            x, ptr = x[at], _ptr_of(is_token, ptr)
            rotation = None if rotation is None else rotation[at]
            if graph is not None:
                raise ValueError("'graph' must be None for a model with 'padding_token', which "
                                 "removes tokens; build the model without it, and remove them from "
                                 "'tokens' and 'graph'")
        graphs, shared = [], graph
        for layer in self.layers:
            run = partial(checkpointed, layer) if self.checkpoint_layers else layer
            x, along = run(x, ptr, source=self.source, graph=shared, generator=generator,
                           rotation=rotation, return_graph=True)
            graphs += [] if along is None else [along]
            shared = graph if self.source is None else along
        x = self.norm(x) if self.norm_first else x
        if at is not None:
            x = x.new_zeros(len(tokens), self.channels).index_copy(0, at, x)
        return (x, graphs) if return_graphs else x

    def _embed(self, tokens: Tensor, ptr: Tensor | Shard, segments: Tensor | None) -> Tensor:
        x, device = self._features(tokens), self._device(tokens)
        if not self._is_rotary:
            x = x + self.position_embedding(self._positions(tokens, ptr))
        if self.segment_embedding is not None:
            if segments is None:
                segments = torch.zeros(len(tokens), dtype=torch.long, device=device)
            check_ids('segments', segments, _size_of(self.segment_embedding), device)
            if len(segments) != len(tokens):
                raise ValueError(f"'segments' must have an entry for each of the {len(tokens)} "
                                 f"tokens (got {len(segments)})")
            x = x + self.segment_embedding(segments)
        elif segments is not None:
            raise ValueError("'segments' must be None for a model without segments; build it with "
                             "'num_segments'")
        return self.dropout(x if self.norm_first else self.norm(x))

    def _features(self, tokens: Tensor) -> Tensor:
        if not isinstance(tokens, Tensor) or not tokens.is_floating_point():
            if self.token_embedding is None:
                raise TypeError("'tokens' must be features for a model without a vocabulary; build "
                                "it with 'num_tokens' for ids")
            check_ids('tokens', tokens, _size_of(self.token_embedding), self._device(tokens))
            return self.token_embedding(tokens)
        if self.padding_token is not None:
            raise TypeError(f"'tokens' must be ids for a model with 'padding_token' (got "
                            f"{tokens.dtype})")
        check_features(tokens, self.channels, self.norm, 'tokens')
        return tokens

    def _device(self, tokens: Tensor) -> torch.device:
        """Return the device of the model, or of the tokens if another module replaces the norm."""
        weight = getattr(self.norm, 'weight', None)
        return weight.device if isinstance(weight, Tensor) else getattr(tokens, 'device', None)

    @property
    def _is_rotary(self) -> bool:
        return isinstance(self.position_embedding, RotaryPositions)

    def _rotation(self, tokens: Tensor, ptr: Tensor | Shard) -> Tensor | None:
        """Return the rotation of the queries and keys of all layers."""
        return self.position_embedding(self._positions(tokens, ptr)) if self._is_rotary else None

    def _positions(self, tokens: Tensor, ptr: Tensor | Shard) -> Tensor:
        if isinstance(ptr, Shard):
            self._check_lengths(host_copy(ptr.ptr).diff())
            return ptr.positions()
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
            raise ValueError(f"'ptr' marks a sequence of {int(length.max())} tokens, but the model "
                             f"was built with max_length={max_length}; truncate the sequence, or "
                             f"increase max_length")


def _size_of(embedding: nn.Module) -> float:
    """Return the number of ids of an embedding; a module without that attribute has no limit."""
    return getattr(embedding, 'num_embeddings', math.inf)


class SinusoidalPositions(PositionTable):
    r"""Fixed embeddings of positions.

    .. math::
        PE_{i, 2j} = \sin(i / 10000^{2j / C}), \qquad PE_{i, 2j + 1} = \cos(i / 10000^{2j / C})

    (Vaswani et al., 2017, Sec. 3.5.)

    Args:
        num_embeddings (int): Number of positions.
        channels (int): Size of each embedding.
    """

    def __init__(self, num_embeddings: int, channels: int):
        check_sides(num_embeddings=num_embeddings, channels=channels)
        super().__init__(num_embeddings, channels)

    def numbers(self) -> Tensor:
        """Return sines and cosines, ``[num_embeddings, channels]``."""
        angle = angles(self.num_embeddings, self.channels)
        return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :self.channels]

    def forward(self, position: Tensor) -> Tensor:
        """Return embeddings ``[num_tokens, channels]`` of positions, int64 ``[num_tokens]``."""
        return self.table[position]


class GridPositions(nn.Module):
    r"""Learned embeddings of the cells of a grid: the sum of those of the row, the column, etc.

    .. math:: E_i = \sum_a E^{(a)}_{c_a(i)}

    where the last coordinate :math:`c_a` changes the fastest.

    Args:
        sides (list of int): Number of rows, columns, and so on.
        channels (int): Size of each embedding.

    Raises:
        TypeError, ValueError: A side is no positive int, or ``sides`` is empty.

    Source: Child et al., "Generating Long Sequences with Sparse Transformers" (2019), Sec. 5.3, for
    the rows, columns and colours of images.

    Example:
        >>> import torch
        >>> from graphattn.models.encoder import GridPositions
        >>> GridPositions([32, 32, 3], 16)(torch.arange(3072)).shape
        torch.Size([3072, 16])
    """

    def __init__(self, sides: list[int], channels: int):
        super().__init__()
        if not sides:
            raise ValueError("'positions' must hold at least one side of the grid (got [])")
        for side in sides:
            check_size('positions', side, 1, MAX_SIDE)
        self.sides = tuple(sides)
        self.num_embeddings = math.prod(sides)
        self.along = nn.ModuleList(nn.Embedding(side, channels) for side in sides)

    def forward(self, position: Tensor) -> Tensor:
        """Return embeddings ``[num_tokens, channels]`` of positions, int64 ``[num_tokens]``."""
        return sum(embedding(position // math.prod(self.sides[axis + 1:]) % side)
                   for axis, (side, embedding) in enumerate(zip(self.sides, self.along)))


class _NoPositions(nn.Module):
    """No embeddings of positions, but a maximum length."""

    def __init__(self, num_embeddings: int, channels: int):
        super().__init__()
        self.num_embeddings = num_embeddings

    def forward(self, position: Tensor) -> float:
        return 0.


EMBEDDINGS = {'learned': nn.Embedding, 'sinusoidal': SinusoidalPositions, 'none': _NoPositions}


def _ptr_of(is_token: Tensor, ptr: Tensor | Shard) -> Tensor:
    """Return the first token of each sequence among the remaining tokens."""
    if isinstance(ptr, Shard):
        raise ValueError("'padding_token' must be None for sequence parallelism; remove those "
                         "tokens from the sequence")
    return torch.cat([ptr[:1], is_token.cumsum(0)])[ptr]


def check_encoder(encoder: nn.Module, predicts_tokens: bool = False) -> None:
    # Also accepts wrappers such as the modules of torch.compile.
    if not isinstance(encoder, nn.Module) or not hasattr(encoder, 'token_embedding'):
        raise TypeError(f"'encoder' must be an Encoder (got {type(encoder).__name__})")
    if predicts_tokens and encoder.token_embedding is None:
        raise ValueError("'encoder' must have a vocabulary to predict tokens (got num_tokens=0)")


def vocabulary_size(encoder: nn.Module) -> int:
    """Return the number of ids of the token embedding, which an adapter may wrap."""
    sizes = [module.num_embeddings for module in encoder.token_embedding.modules()
             if hasattr(module, 'num_embeddings')]
    if not sizes:
        raise TypeError(f"'encoder' must have an nn.Embedding of tokens, or an adapter around one "
                        f"(got {type(encoder.token_embedding).__name__})")
    return sizes[0]
