"""Contract of every source, and every source is in the table."""

import copy
import gc
import json
import multiprocessing
import os
import pickle
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch.utils.data import DataLoader

from graphattn import BipartiteGraph, sources
from graphattn.functional import edge_attention, pair_attention
from graphattn.graphs.cache import GRAPHS
from graphattn.graphs.pair_layout import DiagonalLayout, FreeLayout
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers import fold_heads
from graphattn.patterns import Mask, RandomKeys, SlidingWindow
from graphattn.sources import BlockModelSource, GraphSource, LearnedMaskSource, PatternSource
from tests.clusters import cluster_source
from tests.copies import COPIES

SOURCES = {
    'PatternSource': lambda: PatternSource(SlidingWindow(1)),
    'PatternSource of all pairs': lambda: PatternSource('Full'),
    'PatternSource of a random pattern': lambda: PatternSource(RandomKeys(1), seed=None),
    'PatternSource of a pattern for each head': lambda: PatternSource(['SlidingWindow(1)', 'Full']),
    'PatternSource of masks': lambda: PatternSource(
        [Mask(DiagonalLayout(5), '010'), Mask(FreeLayout(13), '10' * 84 + '1')]),
    'LearnedMaskSource': lambda: LearnedMaskSource(2, 13),
    'LearnedMaskSource of soft draws': lambda: LearnedMaskSource(2, 13, hard=False),
    'LearnedMaskSource by pairs': lambda: LearnedMaskSource(2, 13, mode='dam_unstructured'),
    'LearnedMaskSource of probabilities': lambda: LearnedMaskSource(2, 13, mode='soft'),
    'LearnedMaskSource in evaluation': lambda: LearnedMaskSource(2, 13).eval(),
    'BlockModelSource': lambda: BlockModelSource(heads=2, head_channels=4, clusters=8),
    'BlockModelSource by Algorithm 1': lambda: BlockModelSource(2, 4, 8, distribution='poisson'),
    'BlockModelSource of the repository': lambda: BlockModelSource(2, 4, 8, preset='repo'),
    'BlockModelSource with self-loops': lambda: BlockModelSource(2, 4, 8, fixed=SlidingWindow(0)),
    'ContentClusterSource': lambda: cluster_source(2, 4),
    'ContentClusterSource of a causal model': lambda: cluster_source(2, 4, causal=True),
}
DRAW_NOTHING = {'PatternSource', 'PatternSource of all pairs',
                'PatternSource of a pattern for each head', 'PatternSource of masks',
                'LearnedMaskSource of probabilities', 'LearnedMaskSource in evaluation',
                'ContentClusterSource', 'ContentClusterSource of a causal model'}
PTR = torch.tensor([0, 5, 6, 6 + 13])


every_source = pytest.mark.parametrize('name', SOURCES)


def tokens(num_tokens=19, heads=2):
    return torch.randn(2, num_tokens, heads, 4, generator=torch.Generator().manual_seed(0))


def ask(source, ptr=PTR, seed=0):
    """The graph that the source gives to tokens that depend on their number alone."""
    edges = source(*tokens(int(ptr[-1])), ptr, generator=torch.Generator().manual_seed(seed))
    return as_graph(edges, ptr).with_edge_prob(None)


def call(name):
    source = SOURCES[name]()
    return source, as_graph(source(*tokens(), PTR), PTR)


def as_graph(edges, ptr):
    """Return the pairs of a soft mask that weigh anything."""
    if not isinstance(edges, PairMask):
        return edges
    segments = [BipartiteGraph.from_mask(edges.dense(length)[head] > 0)
                for head in range(edges.heads) for length in ptr.diff().tolist()]
    nothing = BipartiteGraph(ptr.new_empty(2, 0), 0, query_ptr=ptr[:1])
    return BipartiteGraph.batch(segments) if segments else nothing


def test_every_source_is_tested():
    with_edges_of_one_batch = {'StructureSource'}  # which has tests of its own
    assert {name.split()[0] for name in SOURCES} == (
        {each for each in sources.__all__ if each.endswith('Source')} - {'GraphSource'}
        - with_edges_of_one_batch)


@every_source
def test_graph_has_a_segment_for_each_sequence_and_folded_head(name):
    source, graph = call(name)
    graph.validate()
    heads = 2 if source.per_head else 1
    assert graph.num_segments == 3 * heads
    assert graph.query_ptr.diff().tolist() == PTR.diff().tolist() * heads


@every_source
def test_logit_terms_do_not_change_the_forward_pass(name):
    source, graph = call(name)
    for term, neutral in (('edge_gate', 1.), ('edge_bias', 0.)):
        if term in (terms := source.logit_terms(graph)):
            assert torch.equal(terms[term], torch.full_like(terms[term], neutral))


@every_source
def test_a_graph_with_its_gradients_is_freed_at_once(name):
    source, graph = call(name)
    kept = weakref.ref(graph), source.logit_terms(graph), graph.edge_prob
    GRAPHS.clear()
    gc.disable()
    try:
        del graph
        assert kept[0]() is None
    finally:
        gc.enable()


@every_source
def test_the_generator_determines_the_graph(name):
    source = SOURCES[name]()

    def numbers(seed):
        edges = source(*tokens(), PTR, generator=torch.Generator().manual_seed(seed))
        if isinstance(edges, PairMask):
            return edges.values.tolist()
        return edges.edge_index.tolist()

    first = numbers(seed=0)
    assert numbers(seed=0) == first
    others = [numbers(seed) for seed in range(1, 6)]
    if name in DRAW_NOTHING:
        assert all(other == first for other in others)
    else:
        assert all(other != first for other in others)


@every_source
def test_no_sequences(name):
    graph = ask(SOURCES[name](), torch.tensor([0]))
    assert graph.num_edges == graph.num_queries == 0


@every_source
def test_the_number_of_heads_is_checked(name):
    source, _ = call(name)
    assert source.heads == (2 if source.per_head else None)
    if source.heads is not None:
        with pytest.raises(ValueError, match="^'query' must.*2.*source"):
            source(*tokens(heads=3), PTR)


@every_source
def test_the_maximum_length_is_checked(name):
    source, _ = call(name)
    assert source.max_length in (None, 13)
    ptr = torch.tensor([0, 14])
    if source.max_length is None:
        assert ask(source, ptr).num_queries in (14, 28)
    else:
        with pytest.raises(ValueError, match="^'length' must.*13.*got 14"):
            ask(source, ptr)


@every_source
def test_tokens_on_meta_are_refused(name):
    source = SOURCES[name]().to('meta')
    with pytest.raises(ValueError, match="'ptr' must.*values, .*got.*Tensor.*meta"):
        source(*tokens().to('meta'), PTR.to('meta'))


@every_source
def test_arguments_of_a_call_are_checked(name):
    source, (query, key) = SOURCES[name](), tokens()
    with pytest.raises(ValueError, match="^'key' must.*19 tokens.*'query'.*got 18"):
        source(query, key[:18], PTR)
    with pytest.raises(ValueError, match="^'ptr' must rise from 0 to 19"):
        source(query, key, PTR[:-1])
    with pytest.raises(TypeError, match="^'ptr' must be an int64 Tensor"):
        source(query, key, PTR.tolist())


@every_source
@pytest.mark.parametrize('is_training', [True, False])
def test_a_causal_form_lacks_the_edges_to_later_tokens(name, is_training):
    source = SOURCES[name]().train(is_training)
    if isinstance(source, LearnedMaskSource):
        with pytest.raises(ValueError, match="'source' must.*causal.*got LearnedMaskSource"):
            source.causal()
        return
    causal = source.causal()
    assert ask(causal) == ask(source).causal() and causal.training == is_training
    assert (causal.heads, causal.per_head, causal.max_length) == (
        source.heads, source.per_head, source.max_length)
    causal.load_state_dict(source.state_dict())
    assert not [*causal.parameters()] or not {*causal.parameters()} & {*source.parameters()}
    for copied in (COPIES['deepcopy'](causal), COPIES['pickle'](causal)):
        assert ask(copied) == ask(causal)


# A source is a module like any other: it is copied, saved and averaged, before it ran and after.


@every_source
@pytest.mark.parametrize('how', COPIES)
def test_copies_return_the_same_graph(name, how):
    source = SOURCES[name]()
    keys, modules = list(source.state_dict()), [*source.modules()]
    num_bytes = len(pickle.dumps(source))
    for is_training in (source.training, False):
        source.train(is_training)
        for _ in range(2):  # before it ran and after
            other = COPIES[how](source)
            assert other.training == is_training
            assert ask_seeded(other) == ask_seeded(source)
    assert list(source.state_dict()) == keys and [*source.modules()] == modules
    assert len(pickle.dumps(source)) <= num_bytes  # no graph went in


def ask_seeded(source):
    torch.manual_seed(0)  # where AveragedModel's copy is given no generator
    return ask(source)


class Graphs:
    """A data set of the graph of every source."""

    def __len__(self):
        return len(SOURCES)

    def __getitem__(self, number):
        torch.manual_seed(number)
        return ask(list(SOURCES.values())[number]())


@pytest.mark.slow
def test_graphs_can_be_sent_from_workers():
    here = [Graphs()[number] for number in range(len(SOURCES))]  # also fills the cache
    loader = DataLoader(Graphs(), batch_size=None, num_workers=1, multiprocessing_context='fork')
    for graph, expected in zip(loader, here, strict=True):
        assert graph.validate() == expected


def test_a_process_forked_while_another_thread_builds_a_graph_builds_its_own():
    source = PatternSource(SlidingWindow(2))
    expected = ask(source)
    child = multiprocessing.get_context('fork').Process(target=expect, args=(source, expected))
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(GRAPHS._lock.acquire).result()
        child.start()
        other_thread.submit(GRAPHS._lock.release).result()
    child.join(timeout=600)
    is_stuck = child.is_alive()
    child.kill()
    assert not is_stuck and child.exitcode == 0
    assert ask(source) is not expected and ask(source) == expected


def expect(source, graph):
    assert len(GRAPHS) == 0 and ask(source) == graph


# What it keeps depends on nothing but what it was asked and its parameters of now.


def loss(source):
    """Return a loss of attention along a source's graph that reaches its parameters."""
    query, key = (x.requires_grad_() for x in tokens())
    edges = source(query, key, PTR, generator=torch.Generator().manual_seed(0))
    if isinstance(edges, PairMask):
        return pair_attention(query, key, key, PTR, edges).sin().sum()
    if source.per_head:
        query, key = fold_heads(query), fold_heads(key)
    return edge_attention(query, key, key, edges, **source.logit_terms(edges)).sin().sum()


@every_source
def test_evaluated_in_inference_mode_and_then_trained(name):
    GRAPHS.clear()
    torch.manual_seed(0)
    fresh = SOURCES[name]()
    source = copy.deepcopy(fresh)
    with torch.inference_mode():
        for is_training in (False, source.training):
            loss(source.train(is_training))
    for model in (source, fresh):
        loss(model).backward()
        loss(model).backward()
    for (key, parameter), expected in zip(source.named_parameters(), fresh.parameters()):
        assert (parameter.grad is None) == (expected.grad is None), key
        if expected.grad is not None:
            torch.testing.assert_close(parameter.grad, expected.grad)


@torch.no_grad()
def negated(parameter):
    parameter.mul_(-1)


def negated_unseen(parameter):
    parameter.data.mul_(-1)  # no version number tells


@every_source
@pytest.mark.parametrize('change', [negated, negated_unseen])
def test_parameters_changed_in_place_take_effect(name, change):
    source = SOURCES[name]()
    for is_training in (False, source.training):
        ask(source.train(is_training))
    for parameter in source.parameters():
        change(parameter)
    fresh = SOURCES[name]()
    fresh.load_state_dict(source.state_dict())
    for is_training in (False, fresh.training):
        assert ask(source.train(is_training)) == ask(fresh.train(is_training))


def give_way(frame, event, argument):
    """Lets another thread go on after every line of a source."""
    if f'graphattn{os.sep}sources' not in frame.f_code.co_filename:
        return None
    os.sched_yield()
    return give_way


@pytest.mark.slow
@every_source
def test_each_thread_gets_the_graph_of_its_own_sequences(name):
    source = SOURCES[name]().eval()
    ptrs = [torch.tensor([0, 3 + number % 2, 7 + number, 12 + number]) for number in range(8)]
    expected = [ask(source, ptr) for ptr in ptrs]
    GRAPHS.clear()
    start = Barrier(8)

    def work(ptr):
        start.wait(timeout=600)
        sys.settrace(give_way)
        try:
            return [ask(source, ptr) for _ in range(4)]
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor(8) as pool:
        for graphs, graph in zip(pool.map(work, ptrs), expected):
            assert all(other == graph for other in graphs)


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    'PatternSource of a random pattern', 'LearnedMaskSource', 'LearnedMaskSource of probabilities',
    'LearnedMaskSource in evaluation', 'BlockModelSource with self-loops', 'ContentClusterSource'])
def test_compiled_code_returns_the_same(name):
    """Graphs break where a source must read values."""
    torch.compiler.reset()
    source = SOURCES[name]()

    def total(query, key):
        edges = source(2 * query, key, PTR)
        if isinstance(edges, PairMask):
            return edges.bias(13).exp().sum() + edges.norm()
        if source.per_head:
            query, key = fold_heads(query), fold_heads(key)
        out = edge_attention(query, key, key, edges, backend='gather', **source.logit_terms(edges))
        return out.sin().sum() + edges.in_degree().square().sum()

    sums, gradients = [], []
    for run in (total, torch.compile(total, backend='eager')):
        torch.manual_seed(0)
        out = run(*tokens())
        sums.append(out.detach())
        if out.requires_grad:
            gradients.append(torch.autograd.grad(out, [*source.parameters()]))
    torch.testing.assert_close(*sums)
    for gradient, expected in zip(*gradients) if gradients else ():
        torch.testing.assert_close(gradient, expected)


@every_source
def test_its_arguments_build_it_again(name):
    source = SOURCES[name]()
    arguments = json.loads(json.dumps(source.arguments()))
    again = type(source)(**arguments).train(source.training)
    again.load_state_dict(source.state_dict())
    assert again.arguments() == source.arguments()
    expected, got = ask(source), ask(again)
    assert all(map(torch.equal, got.csr, expected.csr))


def test_a_source_without_its_arguments_names_the_missing_one():
    class Forgetful(PatternSource):
        arguments = GraphSource.arguments

        def __init__(self, radius):
            super().__init__(SlidingWindow(radius))

    with pytest.raises(ValueError, match="Forgetful must have an attribute 'radius'"):
        Forgetful(2).arguments()


def test_edges_of_a_batch_are_not_saved():
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="save its 'source'"):
        (PatternSource('star') | edges).arguments()


def test_the_causal_form_of_a_block_model_is_not_saved():
    with pytest.raises(ValueError, match='a causal block model cannot be saved'):
        BlockModelSource(2, 4, 8).causal().arguments()
