"""Ranges of tokens with equal numbers of edges, and the messages of a step."""

import gc
import weakref

import pytest
import torch

from graphattn import BipartiteGraph, distributed
from graphattn.distributed import sequence_parallel, share
from graphattn.patterns import Causal, Full, SlidingWindow, get
from graphattn.placement.messages import Message
from graphattn.samplers import FactorModel, sample_bernoulli
from graphattn.sources import BlockModelSource, PatternSource
from tests.distributed import cases
from tests.distributed.test_distributed import one_process  # noqa: F401


def block_model(tokens: int) -> BipartiteGraph:
    cluster = torch.arange(tokens) * 4 // tokens
    member = torch.nn.functional.one_hot(cluster, 4).float()
    mixing = torch.tensor([[.4, .1, .0, .0], [.1, .2, .0, .0], [.0, .0, .1, .0], [.0, .0, .0, .05]])
    return sample_bernoulli(FactorModel(member, mixing, member),
                            generator=torch.Generator().manual_seed(0))


UNEVEN = {'causal': lambda: Causal().build(2048),
          'BigBird': lambda: get('bigbird').build(2048, seed=0),
          'block model': lambda: block_model(2048),
          'heads': lambda: BipartiteGraph.batch([Causal().build(2048), Full().build(2048)])}


@pytest.mark.parametrize('processes', [2, 4, 8])
@pytest.mark.parametrize('name', UNEVEN)
def test_ranges_have_equal_numbers_of_edges(name, processes):
    graph = UNEVEN[name]()
    bounds = share(torch.tensor([0, 500, 2048]), graph, processes)
    degree = graph.in_degree().view(-1, 2048).sum(0)
    edges = torch.stack([degree[first:last].sum() for first, last in zip(bounds, bounds[1:])])
    assert bounds[0] == 0 and bounds[-1] == 2048 and len(bounds) == processes + 1
    assert edges.max() <= 1.05 * edges.double().mean()


def test_causal_graphs_are_uneven_by_tokens():
    """The test above can fail."""
    bounds = share(torch.tensor([0, 2048]), None, 4)
    degree = Causal().build(2048).in_degree()
    assert bounds == [0, 512, 1024, 1536, 2048]
    assert degree[1536:].sum() > 1.7 * degree.sum() / 4


@pytest.mark.parametrize('arguments, error, match', [
    (([0, 5], None, 2), TypeError, "'ptr'"), ((torch.tensor([0, 5]), None, 0), ValueError, "'pro"),
    ((torch.tensor([0, 5]), 3, 2), TypeError, "'graph'"),
    ((torch.tensor([0, 5]), SlidingWindow(1).build(4), 2), ValueError, 'must have 5 queries')])
def test_what_is_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        share(*arguments)


# Messages ############################################################################


@pytest.fixture
def messages(monkeypatch):
    """Return the messages that are sent: rows of nodes, and what processes agree on."""
    sent = []

    def count(of, name, kind):
        run = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *given: sent.append(kind) or run(*given))

    count(Message, '__init__', 'rows')
    count(distributed, 'all_gather', 'facts')
    return sent


@pytest.mark.slow
@pytest.mark.parametrize('source', [SlidingWindow(2), 'bigbird', [SlidingWindow(1), Causal()]],
                         ids=['window', 'random', 'heads'])
def test_a_layer_along_a_pattern_exchanges_once_and_agrees_on_nothing(
        source, messages, one_process):  # noqa: F811
    parallel = sequence_parallel(cases.encoder(PatternSource(source, seed=3)))
    tokens, _ = cases.inputs(parallel.module)
    for _ in range(3):
        messages.clear()
        parallel(tokens, cases.PTR).sum().backward()
    # The arguments of the step are compared once, and each of two layers exchanges once in each
    # direction.
    assert messages == ['facts', *4 * ['rows']]


@pytest.mark.slow
def test_halos_that_are_not_used_are_dropped(one_process):  # noqa: F811
    parallel = sequence_parallel(cases.encoder(PatternSource(SlidingWindow(2))))
    tokens, _ = cases.inputs(parallel.module)
    for length in range(20, 40):
        parallel(tokens[:length], torch.tensor([0, length]))
    assert 1 <= len(parallel._halos._kept) <= 5


@pytest.mark.slow
def test_graphs_that_a_step_draws_are_dropped(one_process):  # noqa: F811
    parallel = sequence_parallel(cases.encoder(BlockModelSource(cases.HEADS, 8, 4)))
    tokens, _ = cases.inputs(parallel.module)
    drawn = []
    for _ in range(3):
        out, graphs = parallel(tokens, cases.PTR, return_graphs=True)
        drawn += [weakref.ref(graph) for graph in graphs]
        del out, graphs
    gc.collect()
    assert not any(graph() is not None for graph in drawn)
