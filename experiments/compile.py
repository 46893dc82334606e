"""Compilation of all loops of the library and of ListOps, ahead of their first use.

    python -m experiments.compile
"""

import numpy as np

from experiments.data import listops
from graphattn import compile as library


def draw_trees() -> None:
    """Draw a ListOps tree and evaluate it, so that its loops are compiled."""
    listops.evaluate(*listops.draw_trees(np.random.default_rng(0), 1, 1000, 1, 100, 10, 10))


if __name__ == '__main__':
    library.main(draw_trees)
