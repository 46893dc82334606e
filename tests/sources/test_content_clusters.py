"""Clusters by content have the edges of their dense definition."""

import copy

import pytest
import torch

from graphattn.graphs import pairs
from graphattn.patterns import SlidingWindow
from graphattn.sources import ClusterKeys, ContentClusterSource, HeadClusters
from tests.clusters import cluster_source, mask_by_hand, random_clusters

PTR = torch.tensor([0, 30, 30, 31, 90])
KEY_PTR = torch.tensor([0, 12, 15, 15, 100])
HEADS, CHANNELS = 3, 8


def tokens(count, dtype=torch.float, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, HEADS, CHANNELS, generator=generator).to(dtype)


@pytest.mark.parametrize('is_compiled', [True, False])
@pytest.mark.parametrize('dtype', [torch.float, torch.double, torch.half, torch.bfloat16])
@pytest.mark.parametrize('is_causal', [False, True])
@pytest.mark.parametrize('key_ptr', [None, KEY_PTR])
def test_edges_are_those_of_the_dense_mask(key_ptr, is_causal, dtype, is_compiled, monkeypatch):
    monkeypatch.setattr(pairs, '_EDGES_WORTH_COMPILING', 0 if is_compiled else 10**9)
    source = cluster_source(HEADS, CHANNELS, causal=is_causal)
    query, key = tokens(90, dtype), tokens(90 if key_ptr is None else 100, dtype, 1)
    graph = source(query, key, PTR, key_ptr=key_ptr).validate()
    expected = mask_by_hand(source, query, key, PTR, key_ptr)
    assert torch.equal(graph.to_mask(), expected)
    content = expected[90:].sum() - mask_by_hand(
        ContentClusterSource(['SlidingWindow(1)', '1 keys of 2 clusters | GlobalTokens(1)',
                              '1 keys of 2 clusters'], CHANNELS, causal=is_causal),
        query, key, PTR, key_ptr)[90:].sum()
    assert content > 300  # clusters add edges


def test_half_precision_of_the_source_itself_and_autocast():
    source = cluster_source(HEADS, CHANNELS)
    query, key = tokens(90), tokens(90, seed=1)
    expected = source(query, key, PTR)
    with torch.autocast('cpu'):
        assert source(query, key, PTR) == expected
    rounded = copy.deepcopy(source).bfloat16()
    assert torch.equal(rounded(query, key, PTR).to_mask(), mask_by_hand(rounded, query, key, PTR))


def test_a_source_has_the_patterns_that_it_was_given():
    clusters = random_clusters(CHANNELS)
    source = ContentClusterSource(['SlidingWindow(2)', clusters], CHANNELS)
    first, second = source.patterns
    assert first == SlidingWindow(2) and repr(second) == '3 keys of 5 clusters'
    for name in ('query', 'key', 'is_edge'):
        assert torch.equal(getattr(second, name), getattr(clusters, name))
    assert 'SlidingWindow(radius=2), 3 keys of 5 clusters' in repr(source)


def wrong(**changed):
    given = dict(name=ClusterKeys(3, 2), query=torch.zeros(2, 4), key=torch.zeros(2, 4),
                 is_edge=torch.zeros(2, 2, dtype=torch.bool)) | changed
    return lambda: HeadClusters(**given)


@pytest.mark.parametrize('call, error, match', [
    (lambda: ContentClusterSource([], 4), ValueError, "'pattern' must contain at least one"),
    (lambda: ContentClusterSource([3], 4), TypeError, "'pattern' must have a Pattern, a str or"),
    (lambda: ContentClusterSource(['0 keys of 3 clusters'], 4), ValueError, "'pattern' cannot be"),
    (lambda: ContentClusterSource(['Nothing'], 4), ValueError, "'pattern' cannot be read"),
    (lambda: ContentClusterSource([random_clusters(3)], 4), ValueError, 'must have centroids of'),
    (lambda: cluster_source(3, 8)(torch.randn(5, 3, 4), torch.randn(5, 3, 4), torch.tensor([0, 5])),
     ValueError, r"'query' must have shape \[num_tokens, 3, 8\]"),
    (wrong(key=torch.zeros(3, 4)), ValueError, r"'key' must have shape \[2, 4\]"),
    (wrong(query=torch.zeros(3, 4)), ValueError, r"'query' must have shape \[2, channels\]")])
def test_what_is_wrong_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
