"""PATTERN and CLUSTER have the published distribution."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from experiments.data.block_model_graphs import block_model_graphs


@pytest.fixture(scope='module')
def pattern(tmp_path_factory) -> dict[str, list[Data]]:
    return block_model_graphs('PATTERN', 0, tmp_path_factory.mktemp('cache'), (300, 100, 100))


@pytest.fixture(scope='module')
def cluster(tmp_path_factory) -> dict[str, list[Data]]:
    return block_model_graphs('CLUSTER', 0, tmp_path_factory.mktemp('cache'), (300, 10, 10))


def pairs_and_edges(graphs: list[Data], is_kind) -> tuple[int, int]:
    """Count the pairs of nodes whose classes are of a kind, and the edges among them."""
    num_pairs = num_edges = 0
    for graph in graphs:
        kind = is_kind(graph.y[:, None], graph.y).triu(1)
        edges = torch.zeros_like(kind)
        edges[tuple(graph.edge_index)] = True
        num_pairs, num_edges = num_pairs + int(kind.sum()), num_edges + int((kind & edges).sum())
    return num_pairs, num_edges


def assert_share(num_pairs: int, num_edges: int, probability: float) -> None:
    deviation = np.sqrt(probability * (1 - probability) / num_pairs)
    assert abs(num_edges / num_pairs - probability) < 4 * deviation


def inside(a: Tensor, b: Tensor) -> Tensor:
    return a == b


def test_communities_of_cluster_are_as_dense_as_published(cluster):
    assert_share(*pairs_and_edges(cluster['train'], inside), .55)
    assert_share(*pairs_and_edges(cluster['train'], lambda a, b: a != b), .25)


def test_patterns_are_joined_to_the_rest_as_published(pattern):
    assert_share(*pairs_and_edges(pattern['train'], lambda a, b: a != b), .5)
    assert all(int(graph.y.sum()) == 20 for graph in pattern['train'])


@pytest.mark.parametrize(('name', 'nodes', 'edges'), [('pattern', 117.5, 5_891),
                                                      ('cluster', 117.2, 4_301.72)])
def test_graphs_are_of_the_published_size(name, nodes, edges, request):
    graphs = request.getfixturevalue(name)['train']
    assert abs(np.mean([graph.num_nodes for graph in graphs]) - nodes) < 5
    assert abs(np.mean([graph.num_edges for graph in graphs]) / edges - 1) < .08
    assert Batch.from_data_list(graphs).validate() and all(g.is_undirected() for g in graphs[:20])


def test_a_seed_is_one_data_set_that_is_drawn_once(tmp_path, monkeypatch):
    def draw(seed: int) -> Data:
        return Batch.from_data_list(block_model_graphs('CLUSTER', seed, tmp_path, (3, 1, 1))['val'])

    first, other = draw(0), draw(1)
    assert first.num_edges != other.num_edges
    monkeypatch.setattr('experiments.data.block_model_graphs._draw_all', None)
    assert torch.equal(draw(0).edge_index, first.edge_index)


@pytest.mark.parametrize(('options', 'match'), [
    (dict(name='pattern'), "'name' must be 'PATTERN' or 'CLUSTER' .got 'pattern'"),
    (dict(name='PATTERN', num_graphs=(150, 100, 100)), "'num_graphs' .* 100, .* patterns .got 15")])
def test_what_is_refused(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        block_model_graphs(**options, cache=tmp_path)
