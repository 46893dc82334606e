"""The rows that processes have apart are those of the whole graph."""

import pytest
import torch

from graphattn.functional.drive import LOCAL
from graphattn.ops.sample.cpu import thinning
from graphattn.patterns import GlobalTokens, RandomKeys, RandomPairs, SlidingWindow, get
from graphattn.sources import BlockModelSource, GraphSource, LearnedMaskSource, PatternSource
from tests.clusters import cluster_source
from tests.shards import in_threads, same_rows

PTR, HEADS = torch.tensor([0, 21, 21, 29, 83]), 2
SOURCES = {
    'window, global, random': lambda: PatternSource(
        SlidingWindow(2) | GlobalTokens(2) | RandomKeys(3)),
    'Diffuser': lambda: PatternSource(get('diffuser', window=8, num_global=4, num_random=4)),
    'one for each head': lambda: PatternSource([SlidingWindow(2), RandomKeys(3)]),
    'drawn anew': lambda: PatternSource(RandomPairs() | RandomKeys(2), seed=None),
    'block model': lambda: BlockModelSource(HEADS, 8, 4),
    'Algorithm 1, fixed edges': lambda: BlockModelSource(
        HEADS, 8, 4, distribution='poisson', fixed=SlidingWindow(1) | RandomKeys(1)),
    'frozen masks': lambda: LearnedMaskSource(HEADS, 64, init_std=1.).eval(),
    'frozen masks by pairs': lambda: LearnedMaskSource(
        HEADS, 64, mode='dam_unstructured').eval(),
    'clusters by content': lambda: cluster_source(HEADS, 8),
    'clusters of a causal model': lambda: cluster_source(HEADS, 8, causal=True),
}


def check_rows(source: GraphSource, bounds: list[int]) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 83, HEADS, 8, dtype=torch.double)
    whole = source(query, key, PTR, generator=torch.Generator().manual_seed(1))
    parts = in_threads(lambda shard: source(
        query[shard.start:shard.stop], key[shard.start:shard.stop], shard.own_ptr, placement=shard,
        generator=torch.Generator().manual_seed(1)), PTR, bounds)
    for start, stop, rows in zip(bounds, bounds[1:], parts):
        assert same_rows(whole, rows, 83, slice(start, stop))
    if whole.edge_prob is not None:
        probabilities = torch.cat([part.edge_prob for part in parts])
        torch.testing.assert_close(probabilities.sort()[0], whole.edge_prob.sort()[0])


@pytest.mark.parametrize('bounds', [[0, 83], [0, 41, 83], [0, 3, 25, 80, 83]],
                         ids=lambda bounds: f'{len(bounds) - 1}')
@pytest.mark.parametrize('name', SOURCES)
def test_rows_of_shards_equal_the_whole_graph(name, bounds):
    check_rows(SOURCES[name]().double(), bounds)


def test_thinned_rows_equal_the_whole_graph(monkeypatch):
    monkeypatch.setattr(thinning, '_FASTER_BELOW', 1e9)
    check_rows(BlockModelSource(HEADS, 8, 4).double(), [0, 30, 83])


def test_a_source_that_takes_no_placement_is_named():
    class Full(GraphSource):
        def forward(self, query, key, ptr, *, generator=None):
            raise AssertionError

    x = torch.randn(3, 2, 4)
    with pytest.raises(TypeError, match="'placement'"):
        Full()(x, x, torch.tensor([0, 3]), placement=LOCAL)
