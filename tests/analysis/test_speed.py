"""Speed: what is timed, and beside what."""


import pytest
import torch
from torch.utils.benchmark import Timer

from analysis.speed import speed
from graphattn import patterns


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """The calls that were timed, each once."""
    calls = []

    def once(timer, min_run_time):
        calls.append(min_run_time)
        return timer.timeit(1)

    monkeypatch.setattr(Timer, 'blocked_autorange', once)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize('graph', [patterns.SlidingWindow(2).build(40),
                                   patterns.RandomKeys(3).build(20, 30, seed=0)], ids=str)
@pytest.mark.parametrize('options', [{}, {'backward': True}], ids=str)
def test_times_both_for_as_long(graph, options, asked):
    result = speed(graph, at_least=0.5, **options)
    assert sum(asked) == pytest.approx(2 * 0.5)
    assert (result.num_tokens, result.density) == (graph.num_queries, graph.density())
    assert result.seconds > 0 and result.seconds_full > 0
    assert result.times_as_fast == result.seconds_full / result.seconds
    assert result.threads == torch.get_num_threads()


@pytest.mark.parametrize('options', [
    {'heads': 0}, {'head_channels': 0}, {'hops': 0}, {'at_least': 0.}, {'at_least': 601.}], ids=str)
def test_bad_arguments_are_named(options):
    with pytest.raises(ValueError, match=f"'{[*options][0]}' must be"):
        speed(patterns.SlidingWindow(1).build(4), **options)
