"""Labels that hang on a token two edges away: what one hop of one layer cannot see."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from experiments.data.batch import NO_LABEL, Batch
from experiments.tasks.synthetic import Synthetic
from graphattn import BipartiteGraph
from graphattn.patterns import parse


class TwoHop(Synthetic):
    r"""One token of each sequence is the answer, and tokens two edges away must name it::

        tokens   f  f  f  f  a  f  f  f  f     SlidingWindow(1): the neighbours attend to a
        label    -  -  a  -  -  -  a  -  -     theirs do not, but to tokens that do

    The answer is one of ``num_symbols`` symbols, the fillers are any of as many others, and all of
    them are drawn independently. Query i has a label if the answer's place p is in

    .. math::
        \mathcal{N}^2(i) \setminus (\mathcal{N}(i) \cup \{i\}), \qquad
        \mathcal{N}^2(i) = \bigcup_{j \in \mathcal{N}(i)} \mathcal{N}(j)

    with the pattern's keys :math:`\mathcal{N}`. One hop of one layer makes of query i a function
    of the tokens in :math:`\mathcal{N}(i) \cup \{i\}`, which are fillers all. Every draw of
    fillers and place comes once with each answer, so such a model is right in exactly 1 of
    ``num_symbols`` cases, whatever its weights.

    Args:
        pattern (str): Expression of the pattern that the model attends along, see
            :func:`graphattn.patterns.parse`.
        num_symbols (int): Number of answers, the classes; the vocabulary is twice as large.
        **kwargs: Those of :class:`Synthetic`.

    Raises:
        TypeError: ``pattern`` is not an expression.
        ValueError: ``pattern`` draws at random or has no key two edges away and no nearer,
            or ``batch_size`` is not a multiple of ``num_symbols``.
    """

    def __init__(self, pattern: str, num_symbols: int = 8, **kwargs):
        super().__init__(**kwargs)
        if num_symbols < 2:
            raise ValueError(f"'num_symbols' must be at least 2 (got {num_symbols})")
        if self.batch_size % num_symbols != 0:
            raise ValueError(f"'batch_size' must be a multiple of the {num_symbols} answers, each "
                             f"of which comes once (got {self.batch_size})")
        if parse(pattern).is_random:
            raise ValueError(f"'pattern' must not be random, or the model attends along another "
                             f"draw of it (got {pattern!r})")
        self.asks = two_edges_away(parse(pattern).build(self.length)).numpy()
        self.places = self.asks.any(axis=0).nonzero()[0]
        if len(self.places) == 0:
            raise ValueError(f"'pattern' must have a key that is two edges away from a query and "
                             f"no nearer, at {self.length} tokens (got {pattern!r})")
        self.num_symbols = num_symbols

    def draw(self, rng: np.random.Generator) -> Batch:
        num_draws = self.batch_size // self.num_symbols
        fillers = rng.integers(self.num_symbols, 2 * self.num_symbols, (num_draws, self.length))
        tokens = fillers.repeat(self.num_symbols, axis=0)
        place = rng.choice(self.places, num_draws).repeat(self.num_symbols)
        answer = np.tile(np.arange(self.num_symbols), num_draws)
        tokens[np.arange(self.batch_size), place] = answer
        label = np.where(self.asks[:, place].T, answer[:, None], NO_LABEL)
        ptr = torch.arange(self.batch_size + 1) * self.length
        return Batch(torch.from_numpy(tokens).flatten(), ptr, torch.from_numpy(label).flatten())


def two_edges_away(graph: BipartiteGraph) -> Tensor:
    """Return which keys a query reaches over two edges, and not over one or as itself, bool
    ``[num_queries, num_keys]``."""
    is_key = graph.to_mask()
    in_two = is_key.float() @ is_key.float() > 0
    return in_two & ~is_key & ~torch.eye(graph.num_queries, dtype=torch.bool)
