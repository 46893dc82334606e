"""A fixed pattern for every sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph
from graphattn.patterns import Mask, Pattern, load_masks, parse
from graphattn.sources.base import GraphSource

# Of one source, in graphs of the lengths seen last. An edge takes 16 bytes, so 64 MiB: all lengths
# up to 230 of full attention, and of documents, whose lengths hardly recur, no more than that.
MAX_EDGES_KEPT = 2**22


class PatternSource(GraphSource):
    """The edges of a pattern, built for the length of each sequence and shared by all heads; or
    those of several patterns, one for each head. A sequence that is too short for its pattern gets
    the first tokens of a longer one's graph (``crop`` of :meth:`graphattn.patterns.Pattern.build`).

    Args:
        pattern (Pattern, str, path or sequence): Which pattern, or an expression of it for
            :func:`graphattn.patterns.parse`; a sequence of them, one for each head; or a file
            ``.npz`` of the masks of the heads (:func:`graphattn.patterns.save_masks`).
        seed (int, optional): Seed of a random pattern, which then is one graph for each length,
            as in Diffuser; head h has the seed ``seed + h`` if heads have patterns of their own.
            With ``None`` every sequence of every call gets a graph of its own.

    Raises:
        TypeError: ``pattern`` is of the wrong type.
        ValueError: It is an empty sequence, or not an expression, or not a file of masks.
        FileNotFoundError: There is no such file.

    Example:
        >>> import torch
        >>> from graphattn.patterns import SlidingWindow
        >>> from graphattn.sources import PatternSource
        >>> tokens = torch.randn(7, 2, 4)
        >>> PatternSource(SlidingWindow(1))(tokens, tokens, torch.tensor([0, 3, 7]))
        BipartiteGraph(num_queries=7, num_keys=7, num_edges=17, num_blocks=2, density=68.0%)
    """

    def __init__(self, pattern: Sequence[Pattern | str] | Pattern | str | PathLike,
                 seed: int | None = 0):
        super().__init__()
        if isinstance(pattern, PathLike) or isinstance(pattern, str) and pattern.endswith('.npz'):
            pattern = load_masks(Path(pattern))
        is_one = isinstance(pattern, str) or not isinstance(pattern, Sequence)
        self.patterns = tuple(map(_pattern, [pattern] if is_one else pattern))
        if not self.patterns:
            raise ValueError("'pattern' is empty; give a Pattern for each head, or one for all")
        if not is_one:
            self.per_head, self.heads = True, len(self.patterns)
        known = [part.layout.max_length for part in self.patterns if isinstance(part, Mask)]
        self.max_length = min((length for length in known if length is not None), default=None)
        self.seed = seed
        self._kept: OrderedDict[tuple[int, int], BipartiteGraph] = OrderedDict()
        self._num_edges_kept = 0
        self._last_batch: tuple[list[int], BipartiteGraph] | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph:
        if self.heads is not None and query.size(1) != self.heads:
            raise ValueError(f"'query' must have a head for each of the {self.heads} patterns (got "
                             f"{query.size(1)} heads)")
        lengths = ptr.diff().tolist()
        if not lengths:
            return BipartiteGraph(ptr.new_empty(2, 0), 0, query_ptr=ptr)
        if self.seed is None and any(pattern.is_random for pattern in self.patterns):
            graphs = [pattern.build(length, seed=generator, crop=True)
                      for pattern in self.patterns for length in lengths]
            return BipartiteGraph.batch(graphs).to(query.device)
        # Batches of equal lengths follow one another in training, and a graph that is kept also
        # keeps the pointers that kernels ask it for.
        if self._last_batch is None or self._last_batch[0] != lengths:
            graph_of = {(number, length): self._graph(number, length)
                        for number in range(len(self.patterns)) for length in set(lengths)}
            graphs = [graph_of[number, length]
                      for number in range(len(self.patterns)) for length in lengths]
            self._last_batch = lengths, BipartiteGraph.batch(graphs).to(query.device)
        return self._last_batch[1].to(query.device)

    def _graph(self, number: int, length: int) -> BipartiteGraph:
        if (number, length) in self._kept:
            self._kept.move_to_end((number, length))
            return self._kept[number, length]
        seed = None if self.seed is None else self.seed + number
        graph = self.patterns[number].build(length, seed=seed, crop=True)
        if graph.num_edges <= MAX_EDGES_KEPT:
            self._kept[number, length] = graph
            self._num_edges_kept += graph.num_edges
        while self._num_edges_kept > MAX_EDGES_KEPT:
            self._num_edges_kept -= self._kept.popitem(last=False)[1].num_edges
        return graph

    def extra_repr(self) -> str:
        patterns = f'{self.patterns[0]}' if self.heads is None else f'{self.heads} patterns'
        is_random = any(pattern.is_random for pattern in self.patterns)
        return f'{patterns}, seed={self.seed}' if is_random else patterns


def _pattern(pattern: Pattern | str) -> Pattern:
    if not isinstance(pattern, Pattern | str):
        raise TypeError(f"'pattern' must be a Pattern or a str, or one for each head (got "
                        f"{type(pattern).__name__})")
    return parse(pattern) if isinstance(pattern, str) else pattern
