"""A synthetic task whose labels depend on a token two edges away. One hop of one layer cannot reach
it."""

import numpy as np
import torch
from torch import Tensor

from experiments.data.batch import NO_LABEL, TokenBatch
from experiments.tasks.synthetic import Synthetic
from graphattn import BipartiteGraph
from graphattn.patterns import parse


class TwoHop(Synthetic):
    r"""Sequences with one answer token. The tokens that are exactly two edges away from it must
    predict it::

        tokens   f  f  f  f  a  f  f  f  f     SlidingWindow(1): the neighbours attend to a
        label    -  -  a  -  -  -  a  -  -     theirs do not, but to tokens that do

    The answer is one of ``num_symbols`` symbols, and the fillers are from ``num_symbols`` other
    symbols. All are drawn independently. Query i has a label if the position p of the answer is in

    .. math::
        \mathcal{N}^2(i) \setminus (\mathcal{N}(i) \cup \{i\}), \qquad
        \mathcal{N}^2(i) = \bigcup_{j \in \mathcal{N}(i)} \mathcal{N}(j)

    where :math:`\mathcal{N}(i)` is the set of keys of query i in the pattern. The output of one hop
    of one layer at query i is a function of the tokens in :math:`\mathcal{N}(i) \cup \{i\}`, which
    are all fillers. Every draw of fillers and position occurs once with each answer. Thus the
    accuracy of such a model is exactly 1 / ``num_symbols``, for any weights.

    Args:
        pattern (str): Expression of the pattern along which the model attends, see
            :func:`graphattn.patterns.parse`.
        num_symbols (int): Number of answers, which are the classes. The vocabulary has
            ``2 * num_symbols`` symbols.
        **kwargs: Arguments of :class:`Synthetic`.
    """

    def __init__(self, pattern: str, num_symbols: int = 8, **kwargs):
        super().__init__(**kwargs)
        if num_symbols < 2:
            raise ValueError(f"'num_symbols' must be at least 2 (got {num_symbols})")
        if self.batch_size % num_symbols != 0:
            raise ValueError(f"'batch_size' must be a multiple of {num_symbols}, the number of "
                             f"symbols, because each answer occurs equally often (got "
                             f"{self.batch_size})")
        if parse(pattern).is_random:
            raise ValueError(f"'pattern' must not be random, because data and model would sample "
                             f"different graphs (got {pattern!r})")
        self.asks = two_edges_away(parse(pattern).build(self.length)).numpy()
        self.places = self.asks.any(axis=0).nonzero()[0]
        if len(self.places) == 0:
            raise ValueError(f"'pattern' must have a key exactly two edges away from a query at "
                             f"{self.length} tokens (got {pattern!r})")
        self.num_symbols = num_symbols

    def draw(self, rng: np.random.Generator) -> TokenBatch:
        num_draws = self.batch_size // self.num_symbols
        fillers = rng.integers(self.num_symbols, 2 * self.num_symbols, (num_draws, self.length))
        tokens = fillers.repeat(self.num_symbols, axis=0)
        place = rng.choice(self.places, num_draws).repeat(self.num_symbols)
        answer = np.tile(np.arange(self.num_symbols), num_draws)
        tokens[np.arange(self.batch_size), place] = answer
        label = np.where(self.asks[:, place].T, answer[:, None], NO_LABEL)
        ptr = torch.arange(self.batch_size + 1) * self.length
        tokens, label = map(torch.from_numpy, (tokens, label))
        return TokenBatch(tokens.flatten(), ptr, label.flatten())


def two_edges_away(graph: BipartiteGraph) -> Tensor:
    """Return whether each key is exactly two edges away from each query, bool
    ``[num_queries, num_keys]``."""
    is_key = graph.to_mask()
    in_two = is_key.float() @ is_key.float() > 0
    return in_two & ~is_key & ~torch.eye(graph.num_queries, dtype=torch.bool)
