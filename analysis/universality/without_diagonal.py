"""SparseBERT's Theorem 1: full attention without the diagonal, and the proof for three tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from analysis.checks import check_count
from analysis.graphs import GraphLike, as_graph
from analysis.result import Result


def is_full_without_diagonal(graph: GraphLike) -> bool:
    r"""Return whether the graph has more than two tokens, and each token attends to all other
    tokens but not to itself.

    Such attention is universal by SparseBERT's Theorem 1, although it violates Assumption 1, which
    requires self-loops.

    Args:
        graph: See :func:`analysis.graphs.as_graph`.

    Source: Shi et al., "SparseBERT" (2021), Sec. 3.2, Theorem 1.

    Example:
        >>> from analysis.universality import is_full_without_diagonal
        >>> from graphattn.patterns import Full, SlidingWindow
        >>> is_full_without_diagonal((Full() - SlidingWindow(0)).build(3)), \
        ...     is_full_without_diagonal(Full().build(3))
        (True, False)
    """
    graph = as_graph(graph)
    n = graph.num_queries
    return (n > 2 and n == graph.num_keys and graph.num_edges == n * (n - 1)
            and not bool((graph.key == graph.query).any()))


@dataclass(frozen=True)
class ThreeTokens(Result):
    """The answer to whether the construction in SparseBERT's Theorem 1 works for all sequences of
    three tokens on a grid."""

    sequences: int
    """Number of sequences, up to the order of their tokens."""
    as_printed: bool
    """True if layers that shift one token after the other result in the three printed sums."""
    in_order: bool
    r"""Whether :math:`0 < \tilde l_1 < \tilde l_2 < \tilde l_3 < \delta^{-3}`."""
    one_to_one: bool
    r"""Whether different sequences have different :math:`\tilde l_3`."""
    distinct: bool
    """True if all tokens of all sequences differ after the last two layers."""


def three_tokens(steps: int) -> ThreeTokens:
    r"""Check SparseBERT's selective shift without the token itself, for n = 3 and d = 1.

    .. math::
        \Psi(Z; b_1, b_2)_i = \max_{j \ne i} Z_j - \min_{j \ne i} Z_j
        \quad \text{if } b_1 < Z_i < b_2, \text{ else } 0

    For each l on the grid, in increasing order, a layer adds
    :math:`\delta^{-1} \Psi(\cdot; l - \delta / 2, l + \delta / 2)`. Two more layers add
    :math:`\Delta \max_{j \ne i} Z_j`. All values are exact integer multiples of :math:`\delta`.

    Args:
        steps (int): Number of steps of the grid :math:`\{0, \delta, \dots, 1 - \delta\}`,
            :math:`1 / \delta`.

    Returns:
        ThreeTokens.

    Raises:
        TypeError: ``steps`` is not an int.
        ValueError: There are fewer than 3 steps or more than 64.

    Source: Shi et al., "SparseBERT" (2021), Sec. 3.2, step 2 of the proof of Theorem 1.

    Example:
        >>> from analysis.universality import three_tokens
        >>> result = three_tokens(8)
        >>> result.sequences, result.one_to_one, result.distinct
        (56, True, True)
    """
    check_count('steps', steps, at_least=3, at_most=64)
    sequences = list(combinations(range(steps), 3))
    shifted = [_shifted(sequence, steps) for sequence in sequences]
    factor = (steps - 1) * (steps**3 + steps + 1)
    numbers = [number for tokens in shifted for number in _raised(_raised(tokens, factor), factor)]
    return ThreeTokens(
        sequences=len(sequences),
        as_printed=all(tokens == _printed(sequence, steps)
                       for sequence, tokens in zip(sequences, shifted)),
        in_order=all(0 < a < b < c < steps**4 for a, b, c in shifted),
        one_to_one=len({tokens[2] for tokens in shifted}) == len(sequences),
        distinct=len(set(numbers)) == len(numbers))


def _shifted(tokens: tuple[int, ...], steps: int) -> tuple[int, ...]:
    """Return the tokens after one layer, as integers in units of the grid step delta."""
    for number in range(steps):
        others = [tokens[:i] + tokens[i + 1:] for i in range(3)]
        tokens = tuple(token + steps * (max(rest) - min(rest)) if token == number else token
                       for token, rest in zip(tokens, others))
    return tokens


def _printed(sequence: tuple[int, ...], steps: int) -> tuple[int, ...]:
    a, b, c = sequence
    return (a + steps * (c - b), b + steps * (a - c) + steps**2 * (c - b),
            c + steps * (b - a) + steps**2 * (a + b - 2 * c) + steps**3 * (c - b))


def _raised(tokens: tuple[int, ...], factor: int) -> tuple[int, ...]:
    return tuple(token + factor * max(tokens[:i] + tokens[i + 1:])
                 for i, token in enumerate(tokens))
