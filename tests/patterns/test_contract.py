"""One suite over every pattern. A new pattern needs a line in CASES, and the first test asks."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch

from graphattn import BipartiteGraph, patterns
from graphattn.graphs import pairs
from graphattn.graphs.pair_layout import DiagonalLayout, FreeLayout
from graphattn.patterns import *  # noqa: F403 - so that eval reads a repr
from graphattn.patterns.base import Union

SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (2, 2), (7, 7), (16, 16), (7, 5), (5, 7), (2, 16), (16, 2),
         (17, 17)]
MANY = 8_000


@dataclass(frozen=True)
class Case:
    """A pattern and what is known of it.

    Args:
        pattern: The pattern.
        attends: Whether query i attends to key j of n keys; None for a random pattern.
        fewest: How many tokens, both query and key, it can do with.
        min_keys: How many keys it can do with.
        most: How many queries it can do with; None if with any number.
        is_square: Whether it needs as many keys as queries.
        per_query: A bound on the mean number of keys of a query for MANY tokens; None if dense.
        large: What to build for MANY tokens, if not ``pattern``.
    """

    pattern: patterns.Pattern
    attends: Callable[[int, int, int], bool] | None = None
    fewest: int = 0
    min_keys: int = 0
    most: int | None = None
    is_square: bool = False
    per_query: float | None = None
    large: patterns.Pattern | None = None

    def takes(self, num_queries: int, num_keys: int) -> bool:
        if num_queries == 0 or num_keys == 0:
            return True
        return (min(num_queries, num_keys) >= self.fewest and num_keys >= self.min_keys
                and (self.most is None or num_queries <= self.most)
                and (num_queries == num_keys or not self.is_square))


def is_even_product(i: int, j: int, n: int) -> bool:
    """Return whether a product is even, of the positions in a mask of 16 tokens."""
    position = [*range(n - 1), 15]
    return position[i] * position[j] % 2 == 0


def is_near(c: int, k: int, length: int, window: int, dilation: int = 1,
            causal: bool = False) -> bool:
    """Return whether a query at c attends to k on one axis, by the code that NATTEN publishes."""
    if c % dilation != k % dilation or not 0 <= k < length:
        return False
    index, key, size = c // dilation, k // dilation, -(-(length - c % dilation) // dilation)
    if causal:
        return max(index - window + 1, 0) <= key <= index
    left, right = window // 2, window // 2 + window % 2 - 1
    start = max(index - left, 0) + (index + right >= size) * (size - index - right - 1)
    return start <= key < start + window


def on_grid(inner: tuple[int, ...], *axes: Callable[[int, int, int], bool]) -> Callable:
    """Return whether one token attends to another: whether it does on each axis."""
    def attends(i: int, j: int, n: int) -> bool:
        for length, along in zip(inner[::-1], axes[:0:-1]):
            if not along(i % length, j % length, length):
                return False
            i, j = i // length, j // length
        return axes[0](i, j, -(-n // math.prod(inner)))
    return attends


def near(*options) -> Callable[[int, int, int], bool]:
    return lambda c, k, length: is_near(c, k, length, *options)


def boxed(window: int, shift: int = 0) -> Callable[[int, int, int], bool]:
    return lambda c, k, length: (c - shift) // window == (k - shift) // window


EVEN_PRODUCTS = ''.join('01'[i * j % 2 == 0] for i in range(16) for j in range(16))

P = patterns
CASES = [
    Case(P.Full(), lambda i, j, n: True),
    Case(P.Causal(), lambda i, j, n: j <= i),
    Case(P.SlidingWindow(3), lambda i, j, n: abs(i - j) <= 3, per_query=7),
    Case(P.SlidingWindow(0), lambda i, j, n: i == j, per_query=1),
    Case(P.SlidingWindow(2, causal=True), lambda i, j, n: j in (i - 2, i - 1, i), per_query=3),
    Case(P.SlidingWindow(2, dilation=3), lambda i, j, n: i - j in (-6, -3, 0, 3, 6), per_query=5),
    Case(P.SlidingWindow(10**12), lambda i, j, n: True),
    Case(P.OverlappingBlocks(2), lambda i, j, n: abs(i - j) <= 1, min_keys=2, per_query=3),
    Case(P.OverlappingBlocks(6), lambda i, j, n: abs(i // 3 - j // 3) <= 1, min_keys=6,
         per_query=9),
    Case(P.GlobalTokens(0), lambda i, j, n: False, per_query=0),
    Case(P.GlobalTokens(2), lambda i, j, n: min(i, j) < 2, fewest=2, per_query=4),
    Case(P.GlobalTokens((4, 1)), lambda i, j, n: {i, j} & {1, 4}, fewest=5, per_query=4),
    Case(P.GlobalTokens(2, random=True), fewest=2, per_query=4),
    Case(P.GlobalTokens(4, random=True, first=1, block=2), fewest=5, per_query=8),
    Case(P.RandomKeys(2), min_keys=2, per_query=2),
    Case(P.RandomKeys(0, spacing='uniform'), lambda i, j, n: False, per_query=0),
    Case(P.RandomKeys(2, spacing='uniform'),
         lambda i, j, n: (j - i) % n in (n // 4, 3 * n // 4), min_keys=2, per_query=2),
    Case(P.RandomBlocks(2, 3), min_keys=4, per_query=6),
    Case(P.RandomRegular(3), fewest=4, is_square=True, per_query=3),
    Case(P.RandomPairs(), min_keys=1, per_query=1),
    Case(P.RandomPairs(4), fewest=2, per_query=1),
    Case(P.Cropped(P.RandomKeys(2), 20), per_query=2, large=P.Cropped(P.RandomKeys(2), MANY)),
    Case(P.Cropped(P.LogSparse() - P.Causal(), 17), lambda i, j, n: j - i in (1, 2, 4, 8, 16),
         per_query=15, large=P.Cropped(P.LogSparse() - P.Causal(), MANY)),
    Case(P.Mask(FreeLayout(16), EVEN_PRODUCTS), is_even_product, most=16, is_square=True),
    Case(P.Mask(DiagonalLayout(6), '0101'),
         lambda i, j, n: {i, j} & {0, n - 1} or abs(i - j) in (1, 3), is_square=True, per_query=8),
    Case(P.Mask(DiagonalLayout(4, border=False), '1001'), lambda i, j, n: abs(i - j) in (0, 3),
         is_square=True, per_query=3),
    Case(P.EdgeList(16, torch.tensor([[j, i] for i in range(16) for j in range(16) if i * j % 3 == 0
                                      ]).t()), lambda i, j, n: j < 16 and i * j % 3 == 0, most=16),
    Case(P.EdgeList(17, torch.tensor([[16, 0], [16, 2]])),
         lambda i, j, n: (i, j) in ((16, 16), (2, 0)), most=17),
    Case(P.Offsets((-3, 0, 2)), lambda i, j, n: j - i in (-3, 0, 2), per_query=3),
    Case(P.Offsets((10**12,)), lambda i, j, n: False, per_query=0),
    Case(P.Neighborhood(3, ()), on_grid((), near(3)), min_keys=3, per_query=3),
    Case(P.Neighborhood(2, (3,)), on_grid((3,), near(2), near(2)), min_keys=4, per_query=4),
    Case(P.Neighborhood((1, 2), (5,), dilation=(1, 2), causal=(False, True)),
         on_grid((5,), near(1), near(2, 2, True)), per_query=2),
    Case(P.Neighborhood((2, 1, 2), (2, 2), causal=(True, False, False)),
         on_grid((2, 2), near(2, 1, True), near(1), near(2)), min_keys=5, per_query=4),
    Case(P.ShiftedWindows(2, (4,), shift=1), on_grid((4,), boxed(2, 1), boxed(2, 1)), per_query=4),
    Case(P.ShiftedWindows((1, 3), (4,), shift=(0, 2)), on_grid((4,), boxed(1), boxed(3, 2)),
         per_query=3),
    Case(P.ShiftedWindows((7, 10**12), (3,), shift=(3, 2)),
         on_grid((3,), boxed(7, 3), boxed(10**12, 2)), per_query=21),
    Case(P.ShiftedWindows(2, (2, 2)), on_grid((2, 2), boxed(2), boxed(2), boxed(2)), per_query=8),
    Case(P.Strided(3), lambda i, j, n: abs(i - j) < 3 or abs(i - j) in range(0, 99, 3),
         per_query=433, large=P.Strided(150)),
    Case(P.Strided(3, causal=True), lambda i, j, n: 0 <= i - j < 3 or i - j in range(0, 99, 3),
         per_query=284, large=P.Strided(150, causal=True)),
    Case(P.Fixed(4), lambda i, j, n: i // 4 == j // 4 or j in (3, 7, 11, 15), per_query=284,
         large=P.Fixed(150)),
    Case(P.Fixed(3, summary=2, causal=True),
         lambda i, j, n: j <= i and (i // 3 == j // 3 or j % 3 in (1, 2)), per_query=284,
         large=P.Fixed(150, summary=2, causal=True)),
    Case(P.LogSparse(), lambda i, j, n: abs(i - j) in (0, 1, 2, 4, 8, 16), per_query=31),
    Case(P.LogSparse(causal=True), lambda i, j, n: i - j in (0, 1, 2, 4, 8, 16), per_query=16),
    Case(P.Star(), lambda i, j, n: abs(i - j) <= 1 or i == 0 or j == 0, per_query=5),
    Case(P.SlidingWindow(1) | P.GlobalTokens(1), lambda i, j, n: abs(i - j) <= 1 or 0 in (i, j),
         fewest=1, per_query=5),
    Case(P.LogSparse() & P.Causal(), lambda i, j, n: i - j in (0, 1, 2, 4, 8, 16), per_query=16),
    Case(P.LogSparse() - (P.SlidingWindow(1) | P.Causal()),
         lambda i, j, n: j - i in (2, 4, 8, 16), per_query=14),
    Case(P.RandomKeys(2) | P.RandomKeys(2), min_keys=2, per_query=4),
]
every_case = pytest.mark.parametrize('case', CASES, ids=lambda case: repr(case.pattern))
every_sparse_case = pytest.mark.parametrize(
    'case', [case for case in CASES if case.per_query is not None],
    ids=lambda case: repr(case.large or case.pattern))
every_deterministic_case = pytest.mark.parametrize(
    'case', [case for case in CASES if case.attends], ids=lambda case: repr(case.pattern))


def brute_force(attends: Callable, num_queries: int, num_keys: int) -> torch.Tensor:
    rows = [[bool(attends(i, j, num_keys)) for j in range(num_keys)] for i in range(num_queries)]
    return torch.tensor(rows, dtype=torch.bool).reshape(num_queries, num_keys)


def test_every_exported_pattern_has_a_case():
    exported = {getattr(patterns, name) for name in patterns.__all__}
    kinds = {kind for kind in exported if isinstance(kind, type)} - {patterns.Pattern}
    assert {type(case.pattern) for case in CASES} == kinds


@every_case
def test_edges_are_in_range_sorted_and_unique(case):
    for size in filter(lambda size: case.takes(*size), SIZES):
        graph = case.pattern.build(*size, seed=0).validate()
        assert (graph.num_queries, graph.num_keys) == size
        assert graph.num_segments == 1 and graph.edge_prob is None


@every_deterministic_case
def test_edges_match_the_predicate(case):
    for size in filter(lambda size: case.takes(*size), SIZES):
        assert torch.equal(case.pattern.build(*size).to_mask(), brute_force(case.attends, *size))


@every_case
def test_sizes_that_do_not_fit_raise(case):
    for size in SIZES:
        if not case.takes(*size):
            with pytest.raises(ValueError,
                               match=r"^'(tokens|count|degree|num_keys|length|width|window)' "):
                case.pattern.build(*size, seed=0)


@every_case
def test_min_tokens_are_enough_and_one_less_is_not(case):
    fewest = case.pattern.min_tokens
    assert fewest == max(case.fewest, case.min_keys, 1)
    case.pattern.build(fewest, seed=0)
    if fewest > 1:
        with pytest.raises(ValueError, match=rf'; pass crop=True .* of {fewest} tokens$'):
            case.pattern.build(fewest - 1, seed=0)


@every_case
def test_short_sequences_are_cropped_and_others_stay_as_they_are(case):
    fewest = case.pattern.min_tokens
    longest = case.pattern.build(fewest, seed=0).to_mask()
    for length in range(fewest):
        cropped = case.pattern.build(length, seed=0, crop=True).validate()
        assert torch.equal(cropped.to_mask(), longest[:length, :length])
    for size in filter(lambda size: min(size) >= fewest and case.takes(*size), SIZES):
        assert case.pattern.build(*size, seed=0, crop=True) == case.pattern.build(*size, seed=0)


@every_case
def test_num_keys_defaults_to_num_queries(case):
    assert case.pattern.build(16, seed=0) == case.pattern.build(16, 16, seed=0)


@every_case
def test_the_seed_decides(case):
    first = case.pattern.build(16, seed=0)
    assert case.pattern.is_random == (case.attends is None)
    assert case.pattern.build(16, seed=0) == first
    assert case.pattern.build(16, seed=torch.Generator().manual_seed(0)) == first
    assert (case.pattern.build(16, seed=1) != first) == case.pattern.is_random


@every_case
def test_a_generator_moves_on_if_the_pattern_is_random(case):
    generator = torch.Generator().manual_seed(0)
    first, second = (case.pattern.build(16, seed=generator) for _ in range(2))
    assert (first != second) == case.pattern.is_random


@every_case
def test_without_a_seed_the_default_generator_draws(case):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        assert case.pattern.build(16) == case.pattern.build(16, seed=3)


@every_case
def test_repr_is_the_expression(case):
    for again in (eval(repr(case.pattern)), patterns.parse(repr(case.pattern))):
        assert again == case.pattern and hash(again) == hash(case.pattern)
        assert repr(again) == repr(case.pattern)


@every_case
def test_patterns_are_frozen(case):
    with pytest.raises(FrozenInstanceError):
        case.pattern.radius = 1


@every_case
def test_contains_agrees_with_edges(case):
    pairs = torch.cartesian_prod(torch.arange(15), torch.arange(15)).t().flip(0)
    generator = torch.Generator().manual_seed(0)
    found = case.pattern.contains(pairs, 15, 15, generator)
    assert torch.equal(found.view(15, 15), case.pattern.build(15, seed=0).to_mask())


@pytest.mark.slow
@every_case
def test_set_operators_are_mask_algebra(case):
    for other in CASES[CASES.index(case) % 7::7]:
        generator = torch.Generator().manual_seed(0)
        left = case.pattern.build(12, seed=generator).to_mask()
        right = other.pattern.build(12, seed=generator).to_mask()
        for pattern, mask in ((case.pattern | other.pattern, left | right),
                              (case.pattern & other.pattern, left & right),
                              (case.pattern - other.pattern, left & ~right)):
            assert torch.equal(pattern.build(12, seed=0).to_mask(), mask), pattern


@pytest.mark.slow
@every_sparse_case
def test_edges_of_many_tokens(case):
    pattern = case.large or case.pattern
    graph = pattern.build(MANY, seed=0)
    assert graph.num_edges <= case.per_query * MANY
    listed = pattern.edges(MANY, MANY, torch.Generator().manual_seed(0))
    assert listed.size(1) <= 1.5 * graph.num_edges  # little is listed twice


@every_case
def test_rows_are_those_of_the_whole_graph(case):
    for n in [size for size, keys in SIZES if size == keys and case.takes(size, size)]:
        whole = case.pattern.build(n, seed=0).to_mask()
        for first, last in {(0, n), (0, n // 2), (n // 3, n), (n // 2, n // 2), (n // 3, n // 2)}:
            part = case.pattern.build(last - first, n, offset=first, seed=0).validate()
            assert torch.equal(part.to_mask(), whole[first:last]), (n, first, last)


def has_ranges(pattern: P.Pattern) -> bool:
    return pattern.key_ranges(range(16), 16, 16) is not None


@pytest.mark.parametrize('case', [case for case in CASES if has_ranges(case.pattern)],
                         ids=lambda case: repr(case.pattern))
def test_ranges_list_the_edges_of_rows(case, monkeypatch):
    own, other = case.pattern, P.SlidingWindow(2) | P.GlobalTokens((1, 4))
    for pattern in (own, own & P.Causal(), own | other, other & own, own | P.SlidingWindow(10**12)):
        for num_queries, num_keys in ((16, 16), (16, 9), (9, 16), (6, 40)):
            whole = torch.zeros(num_queries, num_keys, dtype=torch.bool)
            key, query = pattern.edges(num_queries, num_keys, None)
            whole[query, key] = True
            for queries in (range(num_queries), range(2, 5), range(3, 3)):
                ranges = pattern.key_ranges(queries, num_queries, num_keys)
                monkeypatch.setattr(pairs, '_EDGES_WORTH_COMPILING', 0)
                rows = pairs.rows_of_ranges(*ranges, num_keys)
                monkeypatch.undo()
                graph = BipartiteGraph.from_csr(*rows, num_keys)
                assert torch.equal(graph.to_mask(), whole[queries.start:queries.stop]), pattern


def test_many_edges_are_listed_from_ranges(monkeypatch):
    pattern = P.SlidingWindow(40) | P.GlobalTokens(1)
    expected = pattern.build(2000)
    monkeypatch.setattr(Union, 'rows', None)
    assert pattern.build(2000) == expected
    monkeypatch.undo()
    monkeypatch.setattr(Union, 'key_ranges', P.Pattern.key_ranges)
    assert pattern.build(2000) == expected


@every_case
def test_rows_of_short_sequences_are_those_of_the_cropped_graph(case):
    n = case.pattern.min_tokens - 1
    whole = case.pattern.build(n, seed=0, crop=True).to_mask()
    part = case.pattern.build(n - n // 2, n, offset=n // 2, seed=0, crop=True)
    assert torch.equal(part.to_mask(), whole[n // 2:])


@every_case
def test_a_generator_moves_on_alike_for_any_rows(case):
    states = []
    for first, last in ((0, 16), (3, 9), (5, 5)):
        generator = torch.Generator().manual_seed(0)
        case.pattern.build(last - first, 16, offset=first, seed=generator)
        states.append(generator.get_state())
    assert all(torch.equal(state, states[0]) for state in states)


@pytest.mark.slow
@every_sparse_case
def test_few_rows_of_many_tokens_list_few_edges(case):
    pattern = case.large or case.pattern
    if isinstance(pattern, patterns.RandomPairs | patterns.RandomRegular):
        return  # whose rows are drawn together
    listed = pattern.rows(range(1000, 1100), MANY, MANY, torch.Generator().manual_seed(0))
    assert listed.size(1) <= 3 * (case.per_query + 1) * 100
