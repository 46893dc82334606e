"""A fixed pattern for every sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph
from graphattn.patterns import Pattern, parse
from graphattn.sources.base import GraphSource


class PatternSource(GraphSource):
    """The edges of a pattern, built for the length of each sequence and shared by all heads.

    Args:
        pattern (Pattern or str): Which pattern, or an expression of it for
            :func:`graphattn.patterns.parse`.
        seed (int, optional): Seed of a random pattern, which then is one graph for each length,
            as in Diffuser. With ``None`` every sequence of every call gets a graph of its own.

    Example:
        >>> import torch
        >>> from graphattn.patterns import SlidingWindow
        >>> from graphattn.sources import PatternSource
        >>> tokens = torch.randn(7, 2, 4)
        >>> PatternSource(SlidingWindow(1))(tokens, tokens, torch.tensor([0, 3, 7]))
        BipartiteGraph(num_queries=7, num_keys=7, num_edges=17, num_blocks=2, density=68.0%)
    """

    def __init__(self, pattern: Pattern | str, seed: int | None = 0):
        super().__init__()
        if not isinstance(pattern, Pattern | str):
            raise TypeError(f"'pattern' must be a Pattern or a str (got {type(pattern).__name__})")
        self.pattern = parse(pattern) if isinstance(pattern, str) else pattern
        self.seed = seed
        self._graph_of_length: dict[int, BipartiteGraph] = {}
        self._last_batch: tuple[list[int], BipartiteGraph] | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph:
        lengths = ptr.diff().tolist()
        if not lengths:
            return BipartiteGraph(ptr.new_empty(2, 0), 0, query_ptr=ptr)
        if self.pattern.is_random and self.seed is None:
            graphs = [self.pattern.build(length, seed=generator) for length in lengths]
            return BipartiteGraph.batch(graphs).to(query.device)
        # Batches of equal lengths follow one another in training, and a graph that is kept also
        # keeps the pointers that kernels ask it for.
        if self._last_batch is None or self._last_batch[0] != lengths:
            graphs = [self._graph(length) for length in lengths]
            self._last_batch = lengths, BipartiteGraph.batch(graphs).to(query.device)
        return self._last_batch[1].to(query.device)

    def _graph(self, length: int) -> BipartiteGraph:
        if length not in self._graph_of_length:
            self._graph_of_length[length] = self.pattern.build(length, seed=self.seed)
        return self._graph_of_length[length]

    def extra_repr(self) -> str:
        return f'{self.pattern}, seed={self.seed}' if self.pattern.is_random else f'{self.pattern}'
