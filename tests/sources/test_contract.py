"""What every source promises, and every source is in the table."""

import pytest
import torch

from graphattn import sources
from graphattn.pair_layout import DiagonalLayout, FreeLayout
from graphattn.pair_mask import PairMask
from graphattn.patterns import Mask, RandomKeys, SlidingWindow
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource

SOURCES = {
    'PatternSource': lambda: PatternSource(SlidingWindow(1)),
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
    'BlockModelSource by Algorithm 1': lambda: BlockModelSource(2, 4, 8, law='poisson'),
    'BlockModelSource of the repository': lambda: BlockModelSource(2, 4, 8, preset='repo'),
    'BlockModelSource with self-loops': lambda: BlockModelSource(2, 4, 8, fixed=SlidingWindow(0)),
}
PTR = torch.tensor([0, 5, 6, 6 + 13])


def call(name, generator=None):
    source = SOURCES[name]()
    query, key = torch.randn(2, 19, 2, 4, generator=torch.Generator().manual_seed(0))
    return source, as_graph(source(query, key, PTR, generator=generator), PTR)


def as_graph(edges, ptr):
    return edges.to_graph(ptr) if isinstance(edges, PairMask) else edges


def test_every_source_is_tested():
    assert {name.split()[0] for name in SOURCES} == set(sources.__all__) - {'GraphSource'}


@pytest.mark.parametrize('name', SOURCES)
def test_graph_has_a_block_for_each_sequence_and_folded_head(name):
    source, graph = call(name)
    graph.validate()
    heads = 2 if source.per_head else 1
    assert graph.num_blocks == 3 * heads
    assert graph.query_ptr.diff().tolist() == PTR.diff().tolist() * heads


@pytest.mark.parametrize('name', SOURCES)
def test_logit_terms_leave_the_forward_pass_alone(name):
    source, graph = call(name)
    for term, neutral in (('edge_gate', 1.), ('edge_bias', 0.)):
        if term in (terms := source.logit_terms(graph)):
            assert torch.equal(terms[term], torch.full_like(terms[term], neutral))


@pytest.mark.parametrize('name', SOURCES)
def test_generator_decides(name):
    torch.manual_seed(0)
    parameters = SOURCES[name]().state_dict()

    def graph_of(seed):
        source = SOURCES[name]()
        source.load_state_dict(parameters)
        x = torch.ones(19, 2, 4)
        return as_graph(source(x, x, PTR, generator=torch.Generator().manual_seed(seed)), PTR)

    assert graph_of(0).with_edge_prob(None) == graph_of(0).with_edge_prob(None)


@pytest.mark.parametrize('name', SOURCES)
def test_no_sequences(name):
    tokens, ptr = torch.randn(0, 2, 4), torch.tensor([0])
    graph = as_graph(SOURCES[name]()(tokens, tokens, ptr), ptr)
    assert graph.num_edges == graph.num_queries == 0


@pytest.mark.parametrize('name', SOURCES)
def test_number_of_heads_is_known_and_checked(name):
    source, _ = call(name)
    assert source.heads == (2 if source.per_head else None)
    tokens = torch.randn(19, 3, 4)
    if source.heads is not None:
        with pytest.raises(ValueError, match="^'query' must have|^'query' must be"):
            source(tokens, tokens, PTR)


@pytest.mark.parametrize('name', SOURCES)
def test_longest_sequence_is_known_and_checked(name):
    source, _ = call(name)
    assert source.max_length in (None, 13)
    tokens, ptr = torch.randn(14, 2, 4), torch.tensor([0, 14])
    if source.max_length is None:
        assert as_graph(source(tokens, tokens, ptr), ptr).num_queries in (14, 28)
    else:
        with pytest.raises(ValueError, match="^'length' must not exceed the 13 tokens"):
            as_graph(source(tokens, tokens, ptr), ptr)
