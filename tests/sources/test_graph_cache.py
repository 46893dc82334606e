"""The cache of graphs: its content, its size and its keys."""


import pytest
import torch

from graphattn.graphs.cache import GRAPHS, GraphCache, Name, bytes_in_use, bytes_of_key
from graphattn.patterns import RandomKeys, SlidingWindow
from graphattn.sources import PatternSource
from tests.graphs import random_graph


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


def test_a_failed_build_leaves_no_entry():
    cache = GraphCache(1000)
    with pytest.raises(ZeroDivisionError):
        cache.get('name', lambda: 1 / 0)
    assert len(cache) == 0
    assert cache.get('name', lambda: SlidingWindow(0).build(2)).num_edges == 2  # and no lock


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


def test_names_of_values_that_are_gone_are_forgotten():
    cache, names = GraphCache(2**14), [Name('lives on'), Name('deleted')]
    for number in range(500):  # as a fixed graph joined with the edges of each step
        cache.get((names[0], number), lambda: SlidingWindow(1).build(40))
    cache.get((*names, 0), lambda: SlidingWindow(1).build(40))
    assert cache._keys_of[names[0]] == set(cache._kept) and len(cache) < 500
    cache.drop(names[1:])
    assert cache._keys_of == {names[0]: set(cache._kept)} and len(cache) > 0
    cache.drop(names)
    assert len(cache) == cache.nbytes == len(cache._keys_of) == 0


@pytest.mark.parametrize('graph', [random_graph(12, 9), random_graph(9, 300)],
                         ids=['few keys', 'many keys'])
def test_the_order_by_key_is_counted_once(graph):
    before = bytes_in_use(graph)
    graph.csc  # noqa: B018 (built on first use)
    assert bytes_in_use(graph) == before
