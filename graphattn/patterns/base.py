"""Patterns, which map lengths to edges, and set operations on patterns."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graphattn._checks import (
    check_bool,
    check_device,
    check_edge_index,
    check_kind,
    check_num_pairs,
    check_range,
    check_seed,
    check_size,
)
from graphattn._explained import Explained, check_override
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pairs import (
    find_pairs,
    number_pairs,
    rows_of_ranges,
    sort_numbers,
    sort_pairs,
)
from graphattn.graphs.picture import html
from graphattn.patterns.layouts import crop_edges, key_ranges

MAX_NUMBER = 2**40  # largest value of integer fields, so that products do not overflow int64


class Pattern(Explained, ABC):
    r"""A rule that computes edges from the numbers of queries and keys.

    Query i and key i have the same position, even if the numbers of keys and queries differ.
    Patterns are immutable and hashable, and compare by value. Their ``repr`` is the expression that
    builds them; ``print`` shortens long expressions. Patterns combine by ``|``, ``&`` and ``-`` as
    sets of edges do.

    A new pattern is a ``@dataclass(frozen=True, repr=False)`` with a method :meth:`edges`. Its time
    and memory should be proportional to the number of edges, not to the number of pairs. Tensors
    from torch's factory functions (``torch.arange``, ``torch.as_tensor``, ``torch.randperm``) are
    on the device of :meth:`build` by default. Override :attr:`is_random` if the pattern draws
    random edges, and :attr:`min_tokens` if it needs more than one token. A pattern that can compute
    the edges of some queries without those of the others should be a :class:`RowPattern`, which
    implements :meth:`rows` instead of :meth:`edges`. If the keys of each query are a few ranges of
    consecutive keys, it should be a :class:`RangePattern`, which implements :meth:`key_ranges`.

    Example:
        >>> from graphattn.patterns import GlobalTokens, SlidingWindow
        >>> pattern = SlidingWindow(1) | GlobalTokens(1)
        >>> pattern
        SlidingWindow(radius=1) | GlobalTokens(tokens=1)
        >>> pattern.build(4).to_mask().int()
        tensor([[1, 1, 1, 1],
                [1, 1, 1, 0],
                [1, 1, 1, 1],
                [1, 0, 1, 1]], dtype=torch.int32)
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for method in Pattern.edges, Pattern.rows, Pattern.key_ranges:
            check_override(cls, method)

    @abstractmethod
    def edges(self, num_queries: int, num_keys: int,
              generator: torch.Generator | None) -> Tensor:
        """Return the edges in any order; duplicates are allowed. New patterns implement this
        method.

        Args:
            num_queries (int): At least 1.
            num_keys (int): At least 1.
            generator (torch.Generator, optional): Random generator, on the default device.

        Returns:
            int64 Tensor ``[2, num_edges]``, key over query.
        """

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        """Return the edges of the consecutive ``queries``, which may be an empty range.

        By default, all :meth:`edges` are computed and then filtered, because some patterns draw all
        rows together. The generator advances by the same amount for any ``queries``.

        Args:
            queries (range): The queries.
            num_queries, num_keys, generator: As in :meth:`edges`.

        Returns:
            int64 Tensor ``[2, num_edges]``, key over query. A query has the same number as in
            :meth:`edges`.
        """
        return crop_edges(self.edges(num_queries, num_keys, generator), queries, num_keys)

    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor] | None:
        """Return ranges of consecutive keys that together are the keys of each query, or ``None``
        if the pattern has no such description.

        :meth:`build` lists ranges several times as fast as :meth:`rows`. Ranges of a query may
        overlap, may be in any order, and may extend beyond the keys.

        Args:
            queries, num_queries, num_keys: As in :meth:`rows`.

        Returns:
            A pair of int64 Tensors ``[len(queries), num_ranges]``: the first key of each range, and
            the key after its last key.
        """
        return None

    @property
    def is_random(self) -> bool:
        """Return whether the graph of the pattern depends on the seed."""
        return False

    @property
    def min_tokens(self) -> int:
        """Number of tokens of the shortest sequence for which the pattern has a graph, at least
        1."""
        return 1

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens of the longest sequence for which the pattern has a graph, or ``None``
        if there is no limit."""
        return None

    def build(self, num_queries: int, num_keys: int | None = None, *, offset: int | None = None,
              seed: int | torch.Generator | None = None, crop: bool = False,
              device: torch.device | str | None = None) -> BipartiteGraph:
        """Build the graph of the pattern for these lengths.

        Args:
            num_queries (int): Number of queries. A graph without queries or keys has no edges.
            num_keys (int, optional): Number of keys; ``num_queries`` if omitted.
            offset (int, optional): Position of the first query in a sequence of ``num_keys``
                tokens. The graph then has the rows ``offset`` to ``offset + num_queries`` of
                ``build(num_keys)`` with the same seed. Time and memory are linear in the edges of
                these rows. Only random :class:`GlobalTokens`, :class:`RandomPairs`,
                :class:`RandomRegular` and patterns without :meth:`rows` need the time and memory of
                the whole graph. If ``offset`` is omitted, the first query has position 0.
            seed (int or torch.Generator, optional): The same seed returns the same graph on the
                same type of device, and a graph of the same distribution on other devices. A
                generator advances; a generator on another type of device is used to seed a new
                generator. If omitted, torch's default generator is used. Ignored unless
                :attr:`is_random`.
            crop (bool): For a sequence shorter than :attr:`min_tokens`, build the graph of
                :attr:`min_tokens` tokens and return its first queries and keys, as models do,
                instead of raising an error.
            device (torch.device or str, optional): Device on which the graph is built; torch's
                default device if omitted.

        Returns:
            BipartiteGraph of one segment, without ``edge_prob``.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: A length is negative or too short for the pattern, ``offset`` leaves too few
                queries, or ``device`` is ``'meta'``.

        Example:
            >>> from graphattn.patterns import OverlappingBlocks, SlidingWindow
            >>> OverlappingBlocks(8).build(3, crop=True)
            BipartiteGraph(num_queries=3, num_keys=3, num_edges=9, density=100.0%)
            >>> SlidingWindow(1).build(2, 5, offset=3).to_mask().int()
            tensor([[0, 0, 1, 1, 1],
                    [0, 0, 0, 1, 1]], dtype=torch.int32)
        """
        num_keys = num_queries if num_keys is None else num_keys
        check_size('num_queries', num_queries)
        check_size('num_keys', num_keys)
        check_num_pairs(num_queries, num_keys)
        check_bool(crop=crop)
        queries, of_queries = _queries(offset, num_queries, num_keys)
        device = torch.get_default_device() if device is None else check_device(device)
        if device.type == 'meta':
            raise ValueError("'device' must be a device with values, such as 'cpu', because the "
                             "edges are read (got 'meta')")
        generator = as_generator(seed, device)
        if of_queries == 0 or num_keys == 0:
            no_edges = torch.empty(2, 0, dtype=torch.long, device=device)
            return BipartiteGraph(no_edges, num_queries, num_keys)
        # A context costs 10 microseconds per call of torch.
        with nullcontext() if device == torch.get_default_device() else device:
            # No rows on GPUs, without ranges, and where rows_of_ranges returns None: rows() lists
            # the edges instead.
            is_short = min(of_queries, num_keys) < self.min_tokens
            ranges = None if is_short or device.type != 'cpu' else self.key_ranges(
                queries, of_queries, num_keys)
            rows = None if ranges is None else rows_of_ranges(*ranges, num_keys)
            if rows is not None:
                return BipartiteGraph.from_csr(*rows, num_keys, validate=False)
            edges = self._fitting_edges(queries, of_queries, num_keys, generator, crop)
        if queries.start:
            edges = torch.stack([edges[0], edges[1] - queries.start])
        check_range(edges, num_queries, num_keys)
        pair = number_pairs(*edges, num_keys)
        del edges  # frees the largest array before sorting
        return BipartiteGraph.from_pairs(sort_pairs(pair), num_queries, num_keys)

    def _fitting_edges(self, queries: range, num_queries: int, num_keys: int,
                       generator: torch.Generator | None, crop: bool) -> Tensor:
        fewest = self.min_tokens
        is_short = min(num_queries, num_keys) < fewest
        if crop and is_short:
            edges = self._rows_here(queries, max(num_queries, fewest), max(num_keys, fewest),
                                    generator)
            return crop_edges(edges, queries, num_keys)
        try:
            return self._rows_here(queries, num_queries, num_keys, generator)
        except ValueError as error:
            if not is_short:
                raise
            raise ValueError(f"{error}; pass crop=True to build() to get the first tokens of the "
                             f"graph of {fewest} tokens") from error

    def _rows_here(self, queries: range, num_queries: int, num_keys: int,
                   generator: torch.Generator | None) -> Tensor:
        if len(queries) == num_queries:
            # on torch's default device
            edges = self.edges(num_queries, num_keys, generator)
        else:
            edges = self.rows(queries, num_queries, num_keys, generator)
        check_edge_index(edges, f'{type(self).__name__}.edges()')
        return edges.to(torch.get_default_device())

    def contains(self, edges: Tensor, num_queries: int, num_keys: int,
                 generator: torch.Generator | None) -> Tensor:
        """Return which of ``edges`` belong to the pattern, bool ``[num_edges]``.

        By default, ``edges`` are looked up in the :meth:`rows` of their queries. Patterns that can
        decide without listing edges override this method, so that the cost of ``SlidingWindow(8) &
        Causal()`` stays linear.
        """
        first, last = torch.stack(edges[1].aminmax()).tolist() if edges.numel() else (0, -1)
        own = self._rows_here(range(first, last + 1), num_queries, num_keys, generator)
        return find_pairs(number_pairs(*edges, num_keys),
                          sort_numbers(number_pairs(*own, num_keys)))

    def __or__(self, other: Pattern) -> Union:
        return Union(self, other) if isinstance(other, Pattern) else NotImplemented

    def __and__(self, other: Pattern) -> Intersection:
        return Intersection(self, other) if isinstance(other, Pattern) else NotImplemented

    def __sub__(self, other: Pattern) -> Difference:
        return Difference(self, other) if isinstance(other, Pattern) else NotImplemented

    def __repr__(self) -> str:
        kind = type(self).__name__
        if not is_dataclass(self):
            raise TypeError(f"'{kind}' must be a dataclass, which has a text and is compared by "
                            f"value; write @dataclass(frozen=True, repr=False) above class {kind}")
        arguments = ((field, getattr(self, field.name)) for field in fields(self))
        given = [f'{field.name}={value!r}' for field, value in arguments if value != field.default]
        return f'{kind}({", ".join(given)})'

    def _repr_html_(self) -> str:
        graph = self.build(max(32, self.min_tokens), seed=0, device='cpu')
        return html(graph, str(self))

    def _require_int(self, name: str, at_least: int) -> None:
        value = getattr(self, name)
        check_size(name, value, at_least, MAX_NUMBER)
        # converts an integer of numpy
        object.__setattr__(self, name, int(value))

    def _require_bool(self, name: str) -> None:
        check_bool(**{name: getattr(self, name)})


class RowPattern(Pattern):
    """Base class of patterns that compute the edges of some queries without those of the others."""

    def edges(self, num_queries: int, num_keys: int,
              generator: torch.Generator | None) -> Tensor:
        return self.rows(range(num_queries), num_queries, num_keys, generator)

    # Random patterns use separate random bits for each query, see draw_distinct.
    @abstractmethod
    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        """Return the edges in any order, duplicates allowed, in time and memory linear in these
        edges."""


class RangePattern(RowPattern):
    """Base class of patterns whose keys of each query are a few ranges of consecutive keys."""

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        begin, end = self.key_ranges(queries, num_queries, num_keys)
        return key_ranges(queries, begin.clamp(min=0), end.clamp(max=num_keys))

    @abstractmethod
    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor]:
        """Return the first key of each range, and the key after its last, as
        :meth:`Pattern.key_ranges`."""


@dataclass(frozen=True, repr=False)
class _SetOperation(RowPattern):
    left: Pattern
    right: Pattern

    symbol: ClassVar[str]
    combined: ClassVar[Callable]  # whether an edge is in the result, given whether it is in each
    precedence: ClassVar[int]  # of the operator in Python, to minimise parentheses in the repr

    def __post_init__(self):
        for name in ('left', 'right'):
            check_kind(name, getattr(self, name), Pattern)

    @property
    def is_random(self) -> bool:
        return self.left.is_random or self.right.is_random

    @property
    def min_tokens(self) -> int:
        return max(self.left.min_tokens, self.right.min_tokens)

    @property
    def max_tokens(self) -> int | None:
        limits = self.left.max_tokens, self.right.max_tokens
        return min((limit for limit in limits if limit is not None), default=None)

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        edges = self.left._rows_here(queries, num_queries, num_keys, generator)
        in_right = self.right.contains(edges, num_queries, num_keys, generator)
        return edges[:, self.combined(True, in_right)]

    def contains(self, edges: Tensor, num_queries: int, num_keys: int,
                 generator: torch.Generator | None) -> Tensor:
        return self.combined(*(part.contains(edges, num_queries, num_keys, generator)
                               for part in (self.left, self.right)))

    def _ranges_of_parts(self, *arguments: Any) -> list[tuple[Tensor, Tensor]] | None:
        parts = [part.key_ranges(*arguments) for part in (self.left, self.right)]
        return None if None in parts else parts

    def __repr__(self) -> str:
        return self._joined(repr)

    def __str__(self) -> str:
        return self._joined(str)

    def _joined(self, shown: Callable[[Pattern], str]) -> str:
        left = self._in_parentheses(self.left, self.precedence, shown)
        # a - b - c is (a - b) - c
        right = self._in_parentheses(self.right, self.precedence + 1, shown)
        return f'{left} {self.symbol} {right}'

    @staticmethod
    def _in_parentheses(part: Pattern, precedence: int, shown: Callable[[Pattern], str]) -> str:
        looser = isinstance(part, _SetOperation) and part.precedence < precedence
        return f'({shown(part)})' if looser else shown(part)


@dataclass(frozen=True, repr=False)
class Union(_SetOperation):
    """The edges of either pattern: ``left | right``.

    The two patterns draw from the same generator, one after the other. So the two draws of
    ``RandomKeys(2) | RandomKeys(2)`` differ.

    Args:
        left (Pattern): One pattern.
        right (Pattern): The other.
    """

    symbol, precedence = '|', 0
    combined = staticmethod(operator.or_)

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        return torch.cat([part._rows_here(queries, num_queries, num_keys, generator)
                          for part in (self.left, self.right)], dim=1)

    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor] | None:
        parts = self._ranges_of_parts(queries, num_queries, num_keys)
        return None if parts is None else tuple(torch.cat(bound, dim=1) for bound in zip(*parts))


@dataclass(frozen=True, repr=False)
class Intersection(_SetOperation):
    """The edges of both patterns: ``left & right``.

    The edges of ``left`` are filtered by ``right``, so the cost is linear in the edges of ``left``
    if ``right`` is :class:`Causal` or :class:`Full`, and linear in the edges of both otherwise.
    ``pattern & Causal()`` is the causal form of a pattern.

    Args:
        left (Pattern): One pattern.
        right (Pattern): The other.

    Example:
        >>> from graphattn.patterns import Causal, GlobalTokens, SlidingWindow
        >>> ((SlidingWindow(1) | GlobalTokens(1)) & Causal()).build(4).to_mask().int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 0],
                [1, 0, 1, 1]], dtype=torch.int32)
    """

    symbol, precedence = '&', 1
    combined = staticmethod(operator.and_)

    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor] | None:
        parts = self._ranges_of_parts(queries, num_queries, num_keys)
        if parts is None:
            return None
        (begin, end), (other_begin, other_end) = parts  # each range of one meets each of the other
        return (torch.maximum(begin[:, :, None], other_begin[:, None]).flatten(1),
                torch.minimum(end[:, :, None], other_end[:, None]).flatten(1))


@dataclass(frozen=True, repr=False)
class Difference(_SetOperation):
    """The edges of ``left`` that are not edges of ``right``: ``left - right``.

    ``pattern - SlidingWindow(0)`` removes the self-loops. A random pattern minus itself is not
    empty, because the two patterns are drawn independently.

    Args:
        left (Pattern): The pattern with the edges.
        right (Pattern): The pattern that is removed.
    """

    symbol, precedence = '-', 2
    combined = staticmethod(operator.gt)  # of bool


def _queries(offset: int | None, num_queries: int, num_keys: int) -> tuple[range, int]:
    # offset: position of the first query among the keys; None builds all queries
    if offset is None:
        return range(num_queries), num_queries
    check_size('offset', offset)
    if offset + num_queries > num_keys:
        raise ValueError(f"'offset' plus 'num_queries' must be at most 'num_keys', the length of "
                         f"the sequence (got {offset} plus {num_queries}, and {num_keys})")
    return range(offset, offset + num_queries), num_keys


def as_generator(seed: int | torch.Generator | None,
                 device: torch.device) -> torch.Generator | None:
    """Return a generator with this seed on ``device``, or ``None`` for torch's default
    generator."""
    if isinstance(seed, torch.Generator):
        if seed.device.type == device.type:
            return seed
        seed = int(torch.randint(2**63 - 1, (1,), generator=seed, device=seed.device))
    if seed is None:
        return None
    check_seed(seed)
    return torch.Generator(device).manual_seed(int(seed))
