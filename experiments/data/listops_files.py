"""The files of ListOps as Long Range Arena released them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.data.listops import END, SYMBOLS, evaluate
from experiments.data.sequences import PARTS, SequenceData, Sequences, SequenceSource
from experiments.data.what_was_read import readable
from graphattn.utils.reading import filled_lines

HEADER = 'Source\tTarget'
NUMBER_OF = {']': END, **{symbol: number for number, symbol in enumerate(SYMBOLS)}}
BRACKETS = str.maketrans('', '', '()')


@dataclass(frozen=True)
class ListOpsFiles(SequenceSource):
    """ListOps trees of the files ``basic_train.tsv``, ``basic_val.tsv`` and ``basic_test.tsv``::

        Source                                   Target
        ( ( ( [MAX 2 ) ( ( [MIN 4 ) 7 ) ] ) ]    4

    Round brackets are left out, as in all published results. The value of each tree is compared
    with its target, so that truncated or corrupted files raise an error.

    Args:
        path (str): The folder with the files, ``lra_release/listops-1000``.
    """

    path: str

    def read(self, max_length: int) -> SequenceData:
        names = dict(zip(PARTS, ('train', 'val', 'test')))
        return SequenceData('ListOps, released', len(SYMBOLS), 10, {
            part: read_listops(Path(self.path) / f'basic_{name}.tsv', max_length)
            for part, name in names.items()})


def read_listops(path: Path, max_length: int) -> Sequences:
    """Read the trees of one file, cut at ``max_length`` tokens."""
    trees, targets = [], []
    with readable(f'{path} cannot be read',
                  "'path' must be the folder of Long Range Arena's basic_train.tsv, basic_val.tsv "
                  "and basic_test.tsv"):
        lines = filled_lines(path, 'ascii')
        header = next(lines, (1, ''))[1].strip()
        if header != HEADER:
            raise ValueError(f"{path}, line 1: expected the header {HEADER!r} (got {header!r:.60})")
        for number, line in tqdm(lines, desc=f'reading {path.name}', unit=' trees', disable=None):
            tree, target = _row(line, f'{path}, line {number}')
            trees.append(tree[:max_length])
            targets.append(target)
    if not trees:
        raise ValueError(f"{path}: expected at least one tree below the header (got none)")
    return Sequences.of(trees, targets)


def _row(line: str, where: str) -> tuple[np.ndarray, int]:
    source, _, target = line.rstrip('\r\n').partition('\t')
    try:
        tree = np.array([NUMBER_OF[symbol] for symbol in source.translate(BRACKETS).split()],
                        dtype=np.uint8)
        value = int(evaluate(tree, np.array([0, len(tree)]))[0])
    except KeyError as error:
        raise ValueError(f"{where}: expected only symbols of ListOps in the source (got "
                         f"{error})") from error
    except ValueError as error:
        raise ValueError(f"{where}: expected a complete tree as the source (got "
                         f"{source!r:.60})") from error
    if target != str(value):
        raise ValueError(f"{where}: expected the target {value}, the value of the tree (got "
                         f"{target!r:.20})")
    return tree, value
