"""The cache of graphs: its content, its size and its keys."""

from dataclasses import dataclass, field

import pytest
import torch

from graphattn.graphs.cache import (
    GRAPHS,
    GraphCache,
    bytes_in_use,
    bytes_of_key,
    is_value,
)
from graphattn.graphs.pair_layout import FreeLayout
from graphattn.patterns import Full, Mask, Pattern, RandomKeys, SlidingWindow
from graphattn.sources import PatternSource


@pytest.fixture
def room(monkeypatch):
    """Gives the cache, empty, room for so many bytes."""
    GRAPHS.clear()
    yield lambda max_bytes: monkeypatch.setattr(GRAPHS, 'max_bytes', max_bytes)
    GRAPHS.clear()


@pytest.fixture
def built(monkeypatch):
    """The lengths that a window is built for, as they come."""
    lengths, build = [], SlidingWindow.build
    monkeypatch.setattr(SlidingWindow, 'build', lambda self, length, **options: (
        lengths.append(length) or build(self, length, **options)))
    return lengths


def ask(*lengths, radius=0):
    tokens = torch.zeros(sum(lengths), 1, 2)
    ptr = torch.tensor([0, *lengths]).cumsum(0)
    return PatternSource(SlidingWindow(radius))(tokens, tokens, ptr)


def test_bytes_include_what_training_adds_to_a_graph():
    for pattern, length in ((SlidingWindow(2), 100), (Full(), 30), (SlidingWindow(0), 70_000)):
        graph = pattern.build(length)
        expected = bytes_in_use(graph)
        assert graph.nbytes < expected
        assert graph.csc and graph.nbytes == expected


def test_recently_used_graphs_stay_in_the_cache(room, built):
    for length in (20, 30, 10):
        ask(length)
    room(GRAPHS.nbytes)
    built.clear()
    for lengths, anew in (([20, 30, 10], []),
                          ([5], [5]),  # 20 goes, unused for longest
                          ([10, 30, 5, 20, 10], [20, 10]),
                          ([80, 20, 10], [80]),  # too large to displace others
                          ([80], [80])):
        for length in lengths:
            ask(length)
            assert GRAPHS.nbytes <= GRAPHS.max_bytes
        assert built == anew
        built.clear()


@pytest.mark.slow
def test_many_lengths_stay_within_the_bound(room):
    room(2**18)
    for length in range(1, 301):
        ask(length, 3, radius=4)
        assert GRAPHS.nbytes <= 2**18
    kept = GRAPHS._kept.items()
    assert GRAPHS.nbytes == sum(bytes_in_use(graph) + bytes_of_key(key)
                                for key, (graph, _) in kept) > 2**17
    assert len(GRAPHS) == len(kept) < 100
    GRAPHS.clear()
    assert GRAPHS.nbytes == len(GRAPHS) == 0


def test_the_size_of_keys_counts(room):
    masks = [Mask(FreeLayout(100), '1' + '0' * 9999) for _ in range(12)]
    tokens = torch.zeros(100, 12, 2)
    room(2**20)
    graph = PatternSource(masks)(tokens, tokens, torch.tensor([0, 100]))
    assert graph.num_edges == 12 and GRAPHS.nbytes > 120_000


def test_a_large_graph_is_built_once_for_a_batch(room, built):
    room(5)
    ask(6, 6, 3)
    assert sorted(built) == [3, 6] and len(GRAPHS) == 0


def test_a_batch_of_one_sequence_is_cached_once(room):
    room(2**20)
    assert ask(9) is ask(9) and len(GRAPHS) == 1


def test_a_failed_build_leaves_no_entry():
    cache = GraphCache(1000)
    with pytest.raises(ZeroDivisionError):
        cache.get('name', lambda: 1 / 0)
    assert len(cache) == 0
    assert cache.get('name', lambda: SlidingWindow(0).build(2)).num_edges == 2  # and no lock


@dataclass(frozen=True)
class Frozen(Pattern):
    size: object = 1
    edges = None


@dataclass(frozen=True)
class Partly(Pattern):
    size: int = field(default=1, compare=False)
    edges = None


@dataclass
class Thawed(Pattern):
    edges = None


class Inherits(SlidingWindow):
    pass


@pytest.mark.parametrize('thing, expected', [
    (SlidingWindow(1) | RandomKeys(2), True), (Frozen(), True), (Frozen((1, 'a', None)), True),
    (Mask(FreeLayout(1), '1'), True), (((SlidingWindow(1), None), (RandomKeys(1), 3)), True),
    (Frozen([1]), False), (Frozen(torch.ones(1)), False), (Frozen(Thawed()), False),
    (Partly(), False), (Thawed(), False), (Inherits(1), False), (Inherits(1) | Full(), False)])
def test_which_values_may_be_keys(thing, expected):
    assert is_value(thing) == expected


@pytest.mark.parametrize('pattern', [SlidingWindow(1), RandomKeys(2)])
@pytest.mark.parametrize('seed', [0, None])
def test_derivatives_of_functions_leave_usable_graphs_behind(room, pattern, seed):
    source, ptr = PatternSource(pattern, seed), torch.tensor([0, 4, 7])

    def total(x):
        graph = source(x, x, ptr, generator=torch.Generator().manual_seed(0))
        return (x[graph.key] * x[graph.query]).sum()

    room(2**20)
    x = torch.randn(7, 1, 2, requires_grad=True)
    derivative = torch.func.grad(total)(x.detach())
    graph = source(x, x, ptr)
    assert graph.csr[1].numpy().size == graph.num_edges
    torch.testing.assert_close(derivative, torch.autograd.grad(total(x), x)[0])
