r"""ListOps: nested operations on digits, drawn by the rules of Long Range Arena.

    python -m experiments.data.listops --num_train 96000

draws the trees, caches them in ``data/cache`` and prints their distributions.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from experiments.data.cached_arrays import cached_arrays
from experiments.data.sequences import (
    PARTS,
    SequenceData,
    Sequences,
    SequenceSource,
    check_at_least,
)
from experiments.data.what_was_read import readable
from experiments.runs.command_line import run_function
from graphattn.extension import jit
from graphattn.utils.reading import filled_lines

SYMBOLS = (*'0123456789', '[MIN', '[MAX', '[MED', '[SM', ']')
MIN, MAX, MED, SM, END = range(10, 15)
HEADER = 'Source\tTarget'  # of the released files
NUMBER_OF = {']': END, **{symbol: number for number, symbol in enumerate(SYMBOLS)}}
BRACKETS = str.maketrans('', '', '()')
OPERATOR_SHARE = 0.25  # of the nodes above the maximum depth
TREES_AT_ONCE = 512
MAX_ATTEMPTS = 2_000_000  # for TREES_AT_ONCE trees; at the published lengths 7,000 suffice


@dataclass(frozen=True)
class GeneratedListOps(SequenceSource):
    """Trees of operations, labelled with their value::

        [MAX 2 9 [MIN 4 7 ] 0 ]        label: 9

    A node above the maximum depth is an operator with probability 1/4; all other nodes are digits.
    An operator is MIN, MAX, MED (the median, rounded down) or SM (the sum modulo 10), with 2 to
    ``max_args`` arguments; all choices are uniform. A tree is kept if it is new and has more than
    ``min_length`` and fewer than ``max_length`` tokens. (Nangia and Bowman, 2018, as drawn by Long
    Range Arena, lra_benchmarks/data/listops.py.)

    Args:
        num_train (int): Number of training trees.
        num_dev (int): Number of development trees.
        num_test (int): Number of test trees.
        min_length (int): Trees of at most this length are dropped.
        max_length (int): Trees of at least this length are dropped.
        max_depth (int): Maximum depth; the root is at depth 1.
        max_args (int): Maximum number of arguments of an operator.
        seed (int): Seed of the trees.
        cache (str): The folder in which they are cached.
    """

    num_train: int = 96_000
    num_dev: int = 2_000
    num_test: int = 2_000
    min_length: int = 500
    max_length: int = 2_000
    max_depth: int = 10
    max_args: int = 10
    seed: int = 0
    cache: str = 'data/cache'

    def __post_init__(self):
        check_at_least(1, num_train=self.num_train, num_dev=self.num_dev, num_test=self.num_test,
                       max_depth=self.max_depth)
        check_at_least(0, min_length=self.min_length, seed=self.seed)
        check_at_least(2, max_args=self.max_args)
        check_at_least(self.min_length + 2, max_length=self.max_length)

    def read(self, max_length: int) -> SequenceData:
        if max_length < self.max_length - 1:
            raise ValueError(f"'max_length' must be at least {self.max_length - 1}, the length of "
                             f"the longest tree, because a truncated tree has no value (got "
                             f"{max_length})")
        parameters = asdict(self)
        del parameters['cache']
        arrays = cached_arrays(Path(self.cache), 'listops', parameters, self._draw)
        return SequenceData('ListOps, generated', len(SYMBOLS), 10,
                            Sequences(**arrays).parts(self.num_train, self.num_dev))

    def _draw(self) -> dict[str, np.ndarray]:
        number = self.num_train + self.num_dev + self.num_test
        trees = Sequences.of(self._distinct_trees(number), [])
        return trees._replace(label=evaluate(trees.tokens, trees.ptr))._asdict()

    def _distinct_trees(self, number: int) -> Iterator[np.ndarray]:
        seen: set[bytes] = set()
        with tqdm(total=number, desc='drawing ListOps', unit=' trees', disable=None) as bar:
            for tokens, ptr in self._chunks():
                before = len(seen)
                for begin, end in zip(ptr[:-1], ptr[1:]):
                    tree = tokens[begin:end]
                    digest = blake2b(tree, digest_size=16).digest()
                    if digest not in seen:
                        seen.add(digest)
                        bar.update()
                        yield tree
                    if len(seen) == number:
                        return
                if len(seen) == before:
                    raise ValueError(
                        f"'min_length' and 'max_length' must allow {number:,} different trees (got "
                        f"only {before:,}, after {MAX_ATTEMPTS:,} attempts without a new tree); "
                        f"widen this range")

    def _chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield chunks of random trees endlessly, each of which depends only on its number."""
        workers = torch.get_num_threads()
        with ThreadPoolExecutor(workers) as pool:
            first = 0
            while True:
                yield from pool.map(self._chunk, range(first, first + 4 * workers))
                first += 4 * workers

    def _chunk(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng((self.seed, number))
        return draw_trees(rng, TREES_AT_ONCE, MAX_ATTEMPTS, self.min_length, self.max_length,
                          self.max_depth, self.max_args)


@jit()
def draw_trees(rng, num_trees, max_attempts, min_length, max_length, max_depth, max_args):
    """Draw random trees whose length is between two limits, which are excluded."""
    tokens = np.empty(num_trees * max_length, np.uint8)
    ptr = np.zeros(num_trees + 1, np.int64)
    kept = 0
    for _ in range(max_attempts):
        begin = ptr[kept]
        length = draw_tree(rng, tokens[begin:begin + max_length], max_depth, max_args)
        if min_length < length < max_length:
            kept += 1
            ptr[kept] = begin + length
            if kept == num_trees:
                break
    return tokens[:ptr[kept]].copy(), ptr[:kept + 1]


@jit()
def draw_tree(rng, tokens, max_depth, max_args):
    """Write a random tree into ``tokens``, and return its length, ``len(tokens)`` if too long."""
    missing = np.zeros(max_depth + 1, np.int64)  # arguments of the open operator at each depth
    depth = length = 0
    while length < len(tokens):
        if depth and missing[depth] == 0:
            tokens[length] = END
            depth -= 1
        else:
            missing[depth] -= 1
            if depth + 1 < max_depth and rng.random() < OPERATOR_SHARE:
                tokens[length] = MIN + rng.integers(0, 4)
                depth += 1
                missing[depth] = rng.integers(2, max_args + 1)
            else:
                tokens[length] = rng.integers(0, 10)
        length += 1
        if depth == 0:
            return length
    return length


def evaluate(tokens: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """Evaluate each tree.

    Example:
        >>> import numpy as np
        >>> tokens = [SYMBOLS.index(symbol) for symbol in '[MAX 2 9 [MIN 4 7 ] 0 ]'.split()]
        >>> evaluate(np.array(tokens, np.uint8), np.array([0, len(tokens)]))
        array([9])
    """
    value = _values(tokens, ptr)
    wrong = np.flatnonzero(value < 0)
    if len(wrong):
        tree = tokens[ptr[wrong[0]]:ptr[wrong[0] + 1]]
        raise ValueError(f"sequence {wrong[0]} must be a tree of ListOps (got "
                         f"{' '.join(SYMBOLS[token] for token in tree[:20])} ...)")
    return value


@jit()
def _values(tokens, ptr):
    value = np.full(len(ptr) - 1, -1)
    for number in range(len(value)):
        begin, end = ptr[number], ptr[number + 1]
        # Open operators and their digits so far.
        stack, size = np.empty(end - begin, np.int64), 0
        for i in range(begin, end):
            token = tokens[i]
            if token > END:
                size = 0
                break
            if token == END:
                first = size
                while first > 0 and stack[first - 1] < MIN:
                    first -= 1
                if first == 0 or first == size:
                    size = 0
                    break
                stack[first - 1] = apply(stack[first - 1], stack[first:size])
                size = first
            else:
                stack[size] = token
                size += 1
        if size == 1 and stack[0] < MIN:
            value[number] = stack[0]
    return value


@jit()
def apply(operator, digits):
    if operator == MIN:
        return digits.min()
    if operator == MAX:
        return digits.max()
    if operator == SM:
        return digits.sum() % 10
    ordered = np.sort(digits)
    middle = len(digits) // 2
    return ordered[middle] if len(digits) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def shares(trees: Sequences) -> dict[str, float]:
    """Return the distributions of the lengths, depths, kinds of tokens and values of trees, as
    fractions by name."""
    length = np.diff(trees.ptr)
    count = np.bincount(trees.tokens, minlength=len(SYMBOLS)) / len(trees.tokens)
    value = np.bincount(trees.label, minlength=10) / len(trees.label)
    # The number of open operators; each tree closes all of its own.
    change = np.where(trees.tokens < MIN, 0, np.where(trees.tokens == END, -1, 1)).astype(np.int8)
    depth = np.cumsum(change, dtype=np.int16)
    depth += trees.tokens < MIN  # a digit is one below its open operators
    depth = np.maximum.reduceat(depth, trees.ptr[:-1])
    quantile = dict(zip((5, 50, 95), np.quantile(length, (0.05, 0.5, 0.95))))
    return {'length, mean': length.mean(),
            **{f'length, {percent} %': value for percent, value in quantile.items()},
            'depth, mean': depth.mean(), 'digits': count[:MIN].sum(),
            **{SYMBOLS[token]: count[token] for token in range(MIN, END + 1)},
            **{f'value {digit}': share for digit, share in enumerate(value)}}


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


def main(num_train: int = 96_000, min_length: int = 500, max_length: int = 2_000, seed: int = 0,
         cache: str = 'data/cache') -> None:
    """Draw ListOps and print its distributions.

    Args:
        num_train: Number of training trees; development and test parts have 2,000 each.
        min_length: Trees are longer than this.
        max_length: Trees are shorter than this.
        seed: Seed of the trees.
        cache: The folder in which they are cached.
    """
    draw = partial(GeneratedListOps, num_train, min_length=min_length, max_length=max_length)
    parts = draw(seed=seed, cache=cache).read(max_length).parts
    for name, share in shares(parts['train']).items():
        print(f'{name:<14} {share:10.3f}')


if __name__ == '__main__':
    run_function(main)
