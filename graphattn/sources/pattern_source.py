"""A fixed pattern for every sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphattn._checks import (
    check_generator,
    check_has_numbers,
    check_integers,
    check_ptr,
    check_seed,
)
from graphattn._tensors import host_copy, index_dtype
from graphattn.functional.drive import LOCAL, Placement
from graphattn.functional.shard import Shard, check_shard
from graphattn.graphs.cache import GRAPHS, is_value
from graphattn.graphs.complete import CompleteGraph
from graphattn.graphs.from_pyg import Edges
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import Segments
from graphattn.patterns import Causal, Full, Pattern, load_masks, parse
from graphattn.sources.base import GraphSource, check_same_sequences, fold_ptr
from graphattn.sources.structure_source import StructureSource

# Longest expression that compiled code passes to an operator. The expressions of presets have up to
# 200 characters, the expression of a mask of 512 x 512 pairs has 262,144.
MAX_CHARACTERS = 2000


class PatternSource(GraphSource):
    """Build the edges of a pattern for the length of each sequence.

    All heads share one pattern, or each head has its own. If a sequence is too short for a pattern,
    the graph of the shortest possible sequence is built and cropped to the first tokens (``crop``
    of :meth:`graphattn.patterns.Pattern.build`).

    Graphs are built on the device of the tokens and cached in ``graphattn.graphs.cache.GRAPHS``.
    All sources of the process share this cache, and ``GRAPHS.clear()`` empties it. Under
    ``torch.compile``, one operator builds the graph. The operator is a graph break unless
    ``fullgraph=True`` or ``torch._dynamo.config.capture_dynamic_output_shape_ops`` is set. Building
    is always a graph break if every call draws new edges, if :func:`graphattn.patterns.parse`
    cannot read the expression of the pattern, or if the expression is very long.

    Args:
        pattern (Pattern, str, path or sequence): A pattern, or an expression for
            :func:`graphattn.patterns.parse`; a sequence of patterns or expressions, one for each
            head; or an ``.npz`` file with the masks of the heads
            (:func:`graphattn.patterns.save_masks`).
        seed (int, optional): Seed of a random pattern. With a seed, all sequences of the same
            length have the same graph, as in Diffuser. If heads have their own patterns, head h has
            the seed ``seed + h`` modulo 2^64. With ``None``, every sequence of every call gets a
            new graph.

    Raises:
        TypeError: ``pattern`` is of the wrong type.
        ValueError: ``pattern`` is an empty sequence, a string that is not an expression, or a file
            without masks.
        FileNotFoundError: The file does not exist.

    Example:
        >>> import torch
        >>> from graphattn.patterns import SlidingWindow
        >>> from graphattn.sources import PatternSource
        >>> tokens = torch.randn(7, 2, 4)
        >>> PatternSource(SlidingWindow(1))(tokens, tokens, torch.tensor([0, 3, 7]))
        BipartiteGraph(num_queries=7, num_keys=7, num_edges=17, num_segments=2, density=68.0%)
    """

    def __init__(self, pattern: Sequence[Pattern | str] | Pattern | str | PathLike,
                 seed: int | None = 0):
        super().__init__()
        if seed is not None:
            check_seed(seed)
        if isinstance(pattern, PathLike) or isinstance(pattern, str) and pattern.endswith('.npz'):
            pattern = load_masks(Path(pattern))
        is_one = isinstance(pattern, str) or not isinstance(pattern, Sequence)
        self.patterns = tuple(map(_pattern, [pattern] if is_one else pattern))
        if not self.patterns:
            raise ValueError("'pattern' must contain at least one Pattern (got an empty sequence); "
                             "pass one Pattern for each head, or one Pattern for all heads")
        if not is_one:
            self.per_head, self.heads = True, len(self.patterns)
        limits = [part.max_tokens for part in self.patterns]
        self.max_length = min((limit for limit in limits if limit is not None), default=None)
        self.seed = None if seed is None else int(seed)
        self._draws_anew = seed is None and any(pattern.is_random for pattern in self.patterns)
        self._expressions = None if self._draws_anew else _expressions(self.patterns,
                                                                       MAX_CHARACTERS)
        self._parts = _parts(self.patterns, self.seed)
        self._is_value = not self._draws_anew and is_value(self._parts)
        self._is_full = all(type(pattern) is Full for pattern in self.patterns)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        placement: Placement = LOCAL,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph:
        self.check_tokens(query, key, ptr, key_ptr, generator)
        if placement is not LOCAL:
            return self.shard_graph(check_shard(placement), generator)
        if key_ptr is not None:
            return self._beside(ptr, key_ptr, generator)
        if not torch.compiler.is_compiling():
            return self._graph_of(ptr, generator)
        return (self.traced_graph(query.size(0), ptr) if self.is_traced else
                self._built(ptr, generator))

    @torch.compiler.disable(reason='the graph of a shard is built once, and kept')
    def shard_graph(self, shard: Shard, generator: torch.Generator | None = None) -> BipartiteGraph:
        """Return the graph from all keys to the queries of a shard, which depends on no token."""
        graph = self.span_graph(shard.lengths, shard.spans(), shard.ptr.device, generator=generator)
        if self._is_value:
            shard.built_from(graph, (self._parts, *shard.lengths))
        return graph

    def span_graph(self, lengths: Sequence[int], spans: Sequence[tuple[int, int]],
                   device: torch.device, *, within: Pattern | None = None,
                   generator: torch.Generator | None = None) -> BipartiteGraph:
        """Return the graph from all keys of each sequence to a range of its queries.

        Args:
            lengths (sequence of int): Number of keys of each sequence.
            spans (sequence of tuple): Begin and end of each sequence's range of queries, as
                positions among its keys. A range that begins at 0 may end after the last key.
            device (torch.device): Device of the graph.
            within (Pattern, optional): Keep only edges that this pattern has too.
            generator (torch.Generator, optional): Random generator, as in a call.
        """
        pieces, parts = _pieces(lengths, spans), self._parts
        if within is not None:
            parts = _parts([pattern & within for pattern in self.patterns], self.seed)
        if self._draws_anew:
            return _build_all(parts, pieces, device, generator)
        return _kept(parts, pieces, device)

    def causal(self) -> PatternSource:
        patterns = [pattern & Causal() for pattern in self.patterns]
        source = PatternSource(patterns if self.per_head else patterns[0], self.seed)
        return source.train(self.training)

    def arguments(self) -> dict[str, Any]:
        expressions = _expressions(self.patterns)
        if expressions is None:
            raise ValueError(f"'pattern' must have a __repr__ that returns an expression of the "
                             f"same pattern, to be saved (got "
                             f"{', '.join(type(pattern).__name__ for pattern in self.patterns)}); "
                             f"see Pattern.__repr__")
        return {'pattern': expressions if self.per_head else expressions[0], 'seed': self.seed}

    @torch.compiler.disable(reason='the graph is built from the lengths of sequences')
    def _beside(self, ptr: Tensor, key_ptr: Tensor,
                generator: torch.Generator | None) -> BipartiteGraph:
        # keys are other tokens than queries; query i and key i have the same position
        spans = [(0, length) for length in host_copy(ptr).diff().tolist()]
        lengths = host_copy(key_ptr).diff().tolist()
        return self.span_graph(lengths, spans, ptr.device, generator=generator)

    @property
    def is_traced(self) -> bool:
        """Return whether compiled code can use :meth:`traced_graph`: no call samples new edges, and
        all patterns have short expressions."""
        return self._expressions is not None

    def traced_graph(self, num_tokens: int, ptr: Tensor, *, causal: bool = False) -> BipartiteGraph:
        """Return the graph of all ``num_tokens`` tokens from a single operator, for compiled code.
        With ``causal``, edges from later keys are left out."""
        # Operators take signed integers.
        seed = None if self.seed is None else (self.seed + 2**63) % 2**64 - 2**63
        expressions = [f'({each}) & Causal()' if causal else each for each in self._expressions]
        indptr, key = pattern_rows(ptr, num_tokens, expressions, seed)
        heads = len(self.patterns)
        return BipartiteGraph.from_csr(indptr, key, heads * num_tokens, validate=False,
                                       query_ptr=fold_ptr(ptr, heads, num_tokens))

    def graph(self, ptr: Tensor, generator: torch.Generator | None = None, *,
              key_ptr: Tensor | None = None) -> BipartiteGraph:
        """Return the graph that a call of this source returns for the sequences that ``ptr`` marks.
        The arguments are those of the call."""
        check_integers('ptr', ptr)
        check_has_numbers('ptr', ptr)
        check_ptr('ptr', ptr, None, ptr.device)
        check_generator(generator)
        if key_ptr is not None:
            check_ptr('key_ptr', key_ptr, None, ptr.device)
            check_same_sequences(ptr, key_ptr)
            return self._beside(ptr, key_ptr, generator)
        return self._built(ptr, generator)

    def _graph_of(self, ptr: Tensor, generator: torch.Generator | None) -> BipartiteGraph:
        ends = host_copy(ptr).tolist()
        lengths = [last - first for first, last in pairwise(ends)]
        pieces = tuple((length, 0, length) for length in lengths)
        key = (self._parts, pieces, ptr.device) if self._is_value else None
        if self._is_full:
            heads = len(self.patterns)
            key = None if _exceeds_cache(lengths, heads) else key
            return GRAPHS.get(key, lambda: _complete(ptr, lengths, heads, key is not None))
        return GRAPHS.get(key, lambda: _build_all(self._parts, pieces, ptr.device, generator))

    _built = torch.compiler.disable(
        _graph_of, reason='a pattern that every call draws again, or that has no short '
                          'expression, is built outside of compiled code')

    def __or__(self, edges: Edges) -> StructureSource:
        return StructureSource(self, edges)

    def extra_repr(self) -> str:
        patterns = f'{self.patterns[0]}' if self.heads is None else f'{self.heads} patterns'
        is_random = any(pattern.is_random for pattern in self.patterns)
        return f'{patterns}, seed={self.seed}' if is_random else patterns


Parts = tuple[tuple[Pattern, int | None], ...]  # each pattern, and its seed if it is random
# Number of keys of a sequence, and begin and end of the queries whose rows are built.
Piece = tuple[int, int, int]


def pattern_graph(patterns: Sequence[Pattern], seed: int | None, lengths: Sequence[int],
                  device: torch.device,
                  spans: Sequence[tuple[int, int]] | None = None) -> BipartiteGraph:
    """Return the graph of sequences with one of ``patterns`` for each head, from the cache if
    possible."""
    # Head h has seed + h modulo 2^64. One pattern stands for all heads. The segments of the first
    # pattern come first. spans: begin and end of the queries whose rows are built.
    return _kept(_parts(patterns, seed), _pieces(lengths, spans), device)


def _parts(patterns: Sequence[Pattern], seed: int | None) -> Parts:
    return tuple((pattern, (seed + head) % 2**64 if pattern.is_random and seed is not None
                  else None) for head, pattern in enumerate(patterns))


def _pieces(lengths: Sequence[int],
            spans: Sequence[tuple[int, int]] | None = None) -> tuple[Piece, ...]:
    spans = [(0, length) for length in lengths] if spans is None else spans
    return tuple((length, *span) for length, span in zip(lengths, spans))


def _kept(parts: Parts, pieces: tuple[Piece, ...], device: torch.device) -> BipartiteGraph:
    key = (parts, pieces, device) if is_value(parts) else None
    return GRAPHS.get(key, lambda: _build_all(parts, pieces, device))


def _build_all(parts: Parts, pieces: tuple[Piece, ...], device: torch.device,
               generator: torch.Generator | None = None) -> BipartiteGraph:
    if len(parts) == len(pieces) == 1:
        return _build(*parts[0], pieces[0], device, generator)
    draws_anew = any(pattern.is_random and seed is None for pattern, seed in parts)
    if draws_anew:
        return _batch([_build(*part, piece, device, generator)
                       for part in parts for piece in pieces], device)
    graph_of = {(number, piece): _kept((part,), (piece,), device)
                for number, part in enumerate(parts) for piece in dict.fromkeys(pieces)}
    return _batch([graph_of[number, piece]
                   for number in range(len(parts)) for piece in pieces], device)


def _build(pattern: Pattern, seed: int | None, piece: Piece, device: torch.device,
           generator: torch.Generator | None) -> BipartiteGraph:
    length, first, last = piece
    options = dict(seed=generator if seed is None else seed, crop=True, device=device)
    if last - first == length:
        return pattern.build(length, **options)
    if last > length:
        return pattern.build(last, length, **options)
    return pattern.build(last - first, length, offset=first, **options)


def _exceeds_cache(lengths: Sequence[int], heads: int) -> bool:
    # all edges listed, which every call would do again
    num_bytes = 2 * sum(length * length for length in lengths) * heads
    return num_bytes > GRAPHS.max_bytes // 4


def _complete(ptr: Tensor, lengths: Sequence[int], heads: int, is_kept: bool) -> CompleteGraph:
    folded = fold_ptr(ptr, heads, sum(lengths))
    shapes = [(length, length) for length in lengths] * heads
    return CompleteGraph(Segments(folded, folded, shapes=shapes), is_listed=is_kept)


def _batch(graphs: list[BipartiteGraph], device: torch.device) -> BipartiteGraph:
    if graphs:
        return BipartiteGraph.batch(graphs)
    no_sequence = torch.zeros(1, dtype=torch.long, device=device)
    return BipartiteGraph(no_sequence.new_empty(2, 0), 0, query_ptr=no_sequence)


# Opaque for torch.compile, because the number of edges depends on the values of ptr.
@torch.library.custom_op(
    'graphattn::pattern_rows', mutates_args=(),
    schema='(Tensor ptr, SymInt num_tokens, str[] patterns, int? seed) -> (Tensor, Tensor)')
def pattern_rows(ptr: Tensor, num_tokens: int, patterns: Sequence[str],
                 seed: int | None) -> tuple[Tensor, Tensor]:
    """Return the CSR rows of the graph that :func:`pattern_graph` builds for expressions."""
    check_ptr('ptr', ptr, num_tokens, ptr.device)
    lengths = host_copy(ptr).diff().tolist()
    graph = pattern_graph(tuple(map(_parse, patterns)), seed, lengths, ptr.device)
    indptr, key = graph.csr
    return indptr.clone(), key.clone()  # compiled code may reuse its inputs' memory


@pattern_rows.register_fake
def _(ptr: Tensor, num_tokens: int, patterns: Sequence[str],
      seed: int | None) -> tuple[Tensor, Tensor]:
    num_nodes = len(patterns) * num_tokens
    num_edges = torch.library.get_ctx().new_dynamic_size()
    return (ptr.new_empty(num_nodes + 1),
            ptr.new_empty(num_edges, dtype=index_dtype(num_nodes)))


_parse = lru_cache(maxsize=128)(parse)  # expressions of at most MAX_CHARACTERS each


def _expressions(patterns: Sequence[Pattern], most: float = math.inf) -> list[str] | None:
    # None if they have more than ``most`` characters, or are not the same patterns when parsed
    try:
        expressions = [repr(pattern) for pattern in patterns]
        is_short = sum(map(len, expressions)) <= most
        return expressions if is_short and list(map(parse, expressions)) == [*patterns] else None
    except (TypeError, ValueError, AttributeError, RecursionError):  # a user's pattern
        return None


def _pattern(pattern: Pattern | str) -> Pattern:
    if not isinstance(pattern, Pattern | str):
        raise TypeError(f"'pattern' must be a Pattern or a str, or one for each head (got "
                        f"{type(pattern).__name__})")
    try:
        return parse(pattern) if isinstance(pattern, str) else pattern
    except ValueError as error:
        raise ValueError(f"'pattern' cannot be read: {error}") from error
