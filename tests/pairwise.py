"""Few cells of a product of parameters that hold every pair of their values."""

from collections.abc import Callable, Iterable
from itertools import combinations, product


def pairwise(*axes: Iterable, among: Callable[..., bool] = lambda *cell: True) -> list[tuple]:
    """Return cells of the product of ``axes`` that hold every pair of values of two axes which
    some cell of those that ``among`` takes has. What goes wrong hangs on a single value or on two
    of them; the same cells are returned every time."""
    cells = [cell for cell in product(*map(list, axes)) if among(*cell)]
    pairs = {cell: set(combinations(enumerate(cell), 2)) for cell in cells}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        chosen.append(max(cells, key=lambda cell: len(pairs[cell] & missing)))
        missing -= pairs[chosen[-1]]
    return sorted(chosen, key=cells.index)
