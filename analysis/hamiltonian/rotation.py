"""The second stage of the search: random extensions and rotations of a path (Pósa, 1976)."""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp


def rotate_and_extend(links: sp.csr_array, is_symmetric: bool, deadline: float,
                      seed: int) -> np.ndarray | None:
    """Search at random for a path through all tokens. Return the tokens in the order of the path,
    or ``None`` if the search runs out of moves or time.

    Args:
        links: Sparse array ``[n, n]`` whose row j marks the tokens that may follow token j in a
            path.
        is_symmetric: Whether the path may be followed in both directions.
        deadline: Time of :func:`time.monotonic` at which the search ends.
        seed: Seed of the search.
    """
    n = links.shape[0]
    rng = np.random.default_rng(seed)
    # Random cubic graphs need some n^2 / 10 moves and are hard for CP-SAT. Directed graphs need few
    # moves and are easy for CP-SAT.
    moves_left = 16 * n + n**2 // 4 if is_symmetric else 64 * n
    reverse = links.T.tocsr()
    successors = np.split(links.indices, links.indptr[1:-1])
    predecessors = np.split(reverse.indices, reverse.indptr[1:-1])
    search = None
    while moves_left > 0 and time.monotonic() < deadline:
        if search is None or search.moves_since_extension > 8 * n:
            search = _GrowingPath(successors, predecessors, rng)
        if search.extend():
            if search.length == n:
                return search.order
            continue
        moves_left -= 1
        if not (search.reverse_end() if is_symmetric else search.exchange_segments()):
            search = None
    return None


class _GrowingPath:
    """A path in a graph that grows at its ends. If it cannot grow, a rotation changes the order of
    its tokens, so that another token is at its end."""

    def __init__(self, successors: list[np.ndarray], predecessors: list[np.ndarray],
                 rng: np.random.Generator):
        n = len(successors)
        self.successors, self.predecessors, self.rng = successors, predecessors, rng
        self.free = np.array([len(ways) for ways in successors])  # successors off the path
        self.order = np.empty(n, dtype=np.int64)
        self.position = np.full(n, -1)
        self.length = self.moves_since_extension = 0
        self._insert(int(rng.integers(n)), 0)

    def extend(self) -> bool:
        """Add a token at either end of the path. Return whether a token could be added."""
        for place, ways in ((self.length, self.successors[self.order[self.length - 1]]),
                            (0, self.predecessors[self.order[0]])):
            ways = ways[self.position[ways] < 0]
            if ways.size:
                # Warnsdorff's rule: first try the tokens with the fewest continuations
                scarcest = np.argmin(self.free[ways] + self.rng.random(ways.size))
                self._insert(int(ways[scarcest]), place)
                return True
        return False

    def reverse_end(self) -> bool:
        """Rotate the path as Pósa does: join the last token to an earlier one, and reverse the
        segment between them. Return whether this was possible."""
        ways = self.successors[self.order[self.length - 1]]
        if ways.size == 0:
            return False
        pivot = int(self.position[self.rng.choice(ways)])
        if pivot == 0:
            return self._cut_cycle()
        self._replace(pivot + 1, self.order[pivot + 1:self.length][::-1].copy())
        return True

    def exchange_segments(self) -> bool:
        """Rotate the path without reversal, and return whether this was possible.

        The last token closes a cycle with an earlier token, and the path before that token enters
        the cycle elsewhere.
        """
        ways = self.successors[self.order[self.length - 1]]
        for pivot in self.rng.permutation(self.position[ways]):
            if pivot == 0:
                return self._cut_cycle()
            entries = self.position[self.successors[self.order[pivot - 1]]]
            entries = entries[entries > pivot]
            if entries.size:
                entry = int(self.rng.choice(entries))
                self._replace(pivot, np.concatenate([self.order[entry:self.length],
                                                     self.order[pivot:entry]]))
                return True
        return False

    def _cut_cycle(self) -> bool:
        """Cut the path open if it is a cycle, preferably at a token that has an edge to a token
        outside the path."""
        ends = np.flatnonzero(self.free[self.order[:self.length]])
        end = int(self.rng.choice(ends) if ends.size else self.rng.integers(self.length))
        self._replace(0, np.roll(self.order[:self.length], -end - 1))
        return True

    def _insert(self, token: int, place: int) -> None:
        self.length += 1
        self.moves_since_extension = -1
        self.free[self.predecessors[token]] -= 1
        self._replace(place, np.concatenate([[token], self.order[place:self.length - 1]]))

    def _replace(self, begin: int, tokens: np.ndarray) -> None:
        self.moves_since_extension += 1
        self.order[begin:self.length] = tokens
        self.position[tokens] = np.arange(begin, self.length)
