"""The selective shift in the proof of Diffuser's Theorem 1 (its Lemma 8), on a small grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from analysis.checks import check_count
from analysis.result import Result

Tokens = tuple[Fraction, ...]
Neighbours = tuple[tuple[int, ...], ...]
Heads = tuple[Fraction, Fraction]
TELEPORT = Fraction(1, 10)  # alpha
MAX_SEQUENCES = 100_000


@dataclass(frozen=True)
class SelectiveShift(Result):
    """The answer to whether the steps of Diffuser's Lemma 8 hold for all sequences of a grid. The
    pattern is a path with self-loops whose first token is global."""

    sequences: int
    """Number of sequences."""
    shift: bool
    """S.17: two heads shift a token between two bounds by c times the range of its neighbours."""
    largest: bool
    """S.18: the first token after the head of the largest neighbours."""
    smallest: bool
    """S.19: the first token after the head of the smallest neighbours."""
    one_to_one: bool
    """True if the first token of S.20 differs for all sequences, assuming S.18 and S.19."""
    one_to_one_as_run: bool
    """The same with the actual outputs of the two heads."""
    distinct: bool
    """True if all tokens of all sequences differ in the end, assuming S.18 and S.19."""


def selective_shift(tokens: int = 3, steps: int = 4) -> SelectiveShift:
    r"""Check the steps of Lemma 8 for d = 1 and K = n + 1 hops, in exact fractions.

    The sequences on the grid :math:`\{0, \delta, \dots, n - \delta\}` are ordered by positions
    (S.15): :math:`z_1 \in [n - 1, n)` and :math:`z_i \in [i - 2, i - 1)` for i > 1, in the order of
    the path. Hard attention selects the largest neighbour of a token above its bound and the
    smallest below (S.16), and K hops of it are (S.14)

    .. math::
        z^{(k)}_i = \delta^{-1} z^{(k - 1)}_{j(i)} + \alpha z_i,

    with :math:`(1 - \alpha) \omega = \delta^{-1}`. In the proof, the head of the smallest
    neighbours walks from token 1 to 2, to 3, and on to n (S.19). But token 2 is the smallest of all
    and attends to itself, as Assumption 1 requires, so the walk stays there, and the first token
    receives no information from the others: ``smallest`` and ``one_to_one_as_run`` are ``False``.
    Assuming S.19, the map is one-to-one. The last layer shifts all tokens by
    :math:`\delta^{-(n + 2)}` times the first.

    Args:
        tokens (int): Number of tokens n.
        steps (int): Number of grid steps in an interval of length 1, :math:`1 / \delta`.

    Returns:
        SelectiveShift.

    Raises:
        TypeError: An argument is not an int.
        ValueError: There are fewer than 3 tokens or 2 steps, or too many sequences.

    Source: Feng et al., "Diffuser" (2023), App. C, Lemma 8, S.14 to S.20. Lemma 7, which follows
    from it, is checked by :func:`analysis.universality.piecewise_constant`.

    Example:
        >>> from analysis.universality import selective_shift
        >>> result = selective_shift(tokens=3, steps=4)
        >>> result.sequences, result.largest, result.smallest, result.one_to_one
        (64, True, False, True)
    """
    check_grid(tokens, steps)
    neighbours = path_with_global_token(tokens)
    sequences = list(sequences_in_order(tokens, steps))
    run, printed = heads_as_run(sequences, steps), heads_as_printed(sequences, steps)
    granted, found = (first_tokens(sequences, heads) for heads in (printed, run))
    ids = [number for sequence, first in zip(sequences, granted)
           for number in shifted_by_first((first, *sequence[1:]), steps)]
    return SelectiveShift(
        sequences=len(sequences),
        shift=all(_shifts_by_range(sequence, neighbours) for sequence in sequences),
        largest=all(ours[0] == theirs[0] for ours, theirs in zip(run, printed)),
        smallest=all(ours[1] == theirs[1] for ours, theirs in zip(run, printed)),
        one_to_one=len(set(granted)) == len(sequences),
        one_to_one_as_run=len(set(found)) == len(sequences),
        distinct=len(set(ids)) == len(ids))


def check_grid(tokens: int, steps: int) -> None:
    """Raise an error if there are too few tokens or steps for the proof of Lemma 8, or too many
    sequences to check."""
    check_count('tokens', tokens, at_least=3)
    check_count('steps', steps, at_least=2)
    if steps**tokens > MAX_SEQUENCES:
        raise ValueError(f"'steps' ** 'tokens' must be at most {MAX_SEQUENCES:,}, the largest "
                         f"number of sequences (got {steps} ** {tokens}); use fewer steps")


def heads_as_run(sequences: list[Tokens], steps: int) -> list[Heads]:
    """Return the first token of each sequence after K = n + 1 hops, for a head that selects the
    largest neighbour and for a head that selects the smallest."""
    neighbours = path_with_global_token(len(sequences[0]))
    return [_both_heads(sequence, neighbours, steps, len(sequence) + 1) for sequence in sequences]


def heads_as_printed(sequences: list[Tokens], steps: int) -> list[Heads]:
    """Return the first token of each sequence after both heads, by the formulas S.18 and S.19 of
    Diffuser."""
    return [(_s18(sequence, steps, len(sequence) + 1), _s19(sequence, steps, len(sequence) + 1))
            for sequence in sequences]


def first_tokens(sequences: list[Tokens], heads: list[Heads]) -> list[Fraction]:
    """Return the first token of each sequence plus the difference of its two heads' results,
    divided by the teleport (Diffuser, S.20)."""
    return [sequence[0] + (high - low) / TELEPORT
            for sequence, (high, low) in zip(sequences, heads)]


def shifted_by_first(z: Tokens, steps: int) -> Tokens:
    """Return the tokens of the sequence ``z`` after the last layer of the proof, which adds a
    multiple of the first token to each token."""
    return tuple(number + steps**(len(z) + 2) * z[0] for number in z)


def path_with_global_token(tokens: int) -> Neighbours:
    """Return for each token the tokens that it attends to: itself, the tokens before and after it,
    and token 0. Token 0 attends to all tokens."""
    return (tuple(range(tokens)),
            *(tuple(sorted({0, i - 1, i, min(i + 1, tokens - 1)})) for i in range(1, tokens)))


def sequences_in_order(tokens: int, steps: int) -> Iterator[Tokens]:
    """Yield the sequences that Diffuser's S.15 orders along the path: the last n - 1 tokens ascend,
    and the first token is above them."""
    first = (tokens - 1, *range(tokens - 1))
    for numbers in product(range(steps), repeat=tokens):
        yield tuple(start + Fraction(number, steps) for start, number in zip(first, numbers))


def hard_attention(z: Tokens, neighbours: Neighbours, bound: Fraction) -> tuple[int, ...]:
    """Return the selected neighbour of each token (S.16): the largest if the token is above the
    bound, else the smallest."""
    return tuple((max if z[i] > bound else min)(of_token, key=lambda j: z[j])
                 for i, of_token in enumerate(neighbours))


def _shifts_by_range(z: Tokens, neighbours: Neighbours) -> bool:
    """Return whether two heads with bounds around a token shift only this token, as Diffuser's Eq.
    S.17 says, for every token of ``z``."""
    half = Fraction(1, 10**6)
    for chosen in range(len(z)):
        above, below = (hard_attention(z, neighbours, z[chosen] + side) for side in (-half, half))
        shifted = [z[i] + z[above[i]] - z[below[i]] for i in range(len(z))]
        of_chosen = [z[j] for j in neighbours[chosen]]
        expected = [*z]
        expected[chosen] += max(of_chosen) - min(of_chosen)
        if shifted != expected:
            return False
    return True


def _both_heads(z: Tokens, neighbours: Neighbours, steps: int, hops: int) -> Heads:
    """Return the first token after K hops of Diffuser's Eq. S.14, for each of two heads.

    The first token is the largest. The bound of the first head lies just below it, so the first
    token takes its largest neighbour. The bound of the second head lies above it.

    Args:
        z: The sequence.
        neighbours: The tokens that each token attends to.
        steps: Number of grid steps in an interval of length 1.
        hops: Number of hops K.
    """
    half = Fraction(1, 2 * steps)
    return tuple(_diffused(z, hard_attention(z, neighbours, z[0] + side), steps, hops)[0]
                 for side in (-half, half))


def _diffused(z: Tokens, taken: tuple[int, ...], steps: int, hops: int) -> Tokens:
    now = z
    for _ in range(hops):
        now = tuple(steps * now[j] + TELEPORT * own for j, own in zip(taken, z))
    return now


def _s18(z: Tokens, steps: int, hops: int) -> Fraction:
    return steps**hops * z[0] + TELEPORT * sum(steps**i * z[0] for i in range(hops))


def _s19(z: Tokens, steps: int, hops: int) -> Fraction:
    n = len(z)
    return (steps**hops * z[-1] + TELEPORT * sum(steps**i * z[-1] for i in range(n - 1, hops))
            + TELEPORT * sum(steps**i * z[i] for i in range(n - 1)))
