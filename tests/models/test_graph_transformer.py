"""A graph transformer over PyG batches."""

import copy
import pickle

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from graphattn.layers import GraphAttention
from graphattn.models import GraphTransformer
from graphattn.sources import BlockModelSource, LearnedMaskSource
from tests.pairwise import pairwise

SOURCES = {'full': dict(source='Full()'),
           'exphormer': dict(source='exphormer(degree=2)', joins_edges=True, virtual_nodes=1),
           'block model': dict(source=BlockModelSource(2, 4, 4)),
           'block model and edges': dict(source=BlockModelSource(2, 4, 4), joins_edges=True),
           'of each layer': dict(source=['Full()', BlockModelSource(2, 4, 4)], joins_edges=True),
           'none': {}}


def graph(num_nodes: int, seed: int = 0) -> Data:
    drawn = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(num_nodes, (2, 2 * num_nodes), generator=drawn)
    edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]], num_nodes=num_nodes)
    return Data(x=torch.randn(num_nodes, 3, generator=drawn), edge_index=edge_index,
                pe=torch.randn(num_nodes, 2, generator=drawn),
                edge_attr=torch.randint(4, (edge_index.size(1), 1), generator=drawn))


def batch() -> Batch:
    return Batch.from_data_list([graph(5), graph(1), graph(9, seed=1)])


def model(local: str | None = 'gin', **options) -> GraphTransformer:
    torch.manual_seed(0)
    return GraphTransformer(3, 2, channels=8, heads=2, num_layers=2, local=local, **options)


@pytest.mark.parametrize('source, local, has_edge_features', pairwise(
    SOURCES, ['gin', 'gated_gcn', 'transformer'], [False, True]))
def test_every_parameter_learns(source, local, has_edge_features):
    own = model(local, edge_features=[4] if has_edge_features else None, encodings={'pe': 2},
                **SOURCES[source])
    data, unused = batch(), dict(own.named_parameters())
    for _ in range(20):  # distances of one hop mask may be off by chance
        own(data).square().sum().backward()
        unused = [name for name, parameter in own.named_parameters() if parameter.grad is None]
        if not unused:
            break
    assert unused == []


def test_virtual_nodes_are_the_first_of_each_graph_and_attend_to_all_others():
    own = model(source='GlobalTokens(2)', joins_edges=True, virtual_nodes=2).eval()
    data = batch()
    out, (graph, _) = own(data, return_graphs=True)
    assert out.shape == (15, 2)
    edges, start = set(), 0
    for part in data.to_data_list():
        nodes = range(start, start + 2 + part.num_nodes)
        edges |= {(i, j) for i in nodes for j in nodes if min(i, j) < start + 2}
        edges |= {(i + start + 2, j + start + 2) for i, j in part.edge_index.T.tolist()}
        start = nodes.stop
    assert set(map(tuple, graph.edge_index.as_tensor().T.tolist())) == edges


@pytest.mark.parametrize('level', ['node', 'graph'])
@pytest.mark.parametrize('virtual_nodes', [0, 2])
def test_graphs_of_a_batch_do_not_see_one_another(level, virtual_nodes):
    own = model(**SOURCES['full'], level=level, virtual_nodes=virtual_nodes).eval()
    alone = torch.cat([own(data) for data in batch().to_data_list()])
    torch.testing.assert_close(own(batch()), alone)
    assert len(alone) == (3 if level == 'graph' else 15)


@pytest.mark.parametrize('source', SOURCES.values(), ids=SOURCES)
def test_copies_and_graphs_without_edges(source):
    own = model(**source).eval()
    for made in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        torch.manual_seed(0)
        expected = own(batch())
        torch.manual_seed(0)
        assert torch.equal(made(batch()), expected)
    lonely = Data(x=torch.randn(4, 3), edge_index=torch.empty(2, 0, dtype=torch.long))
    assert own(lonely).isfinite().all()
    out, graphs = own(batch(), return_graphs=True)
    assert len(graphs) == (0 if source == {} else 2)


@pytest.mark.parametrize('change, words', [
    (dict(x=None), "'x'"), (dict(edge_index=None), "'edge_index'"), (dict(pe=None), "'pe'"),
    (dict(pe=torch.zeros(5, 3)), "'pe' must have 2 columns"), (dict(edge_attr=None), "'edge_attr'"),
    (dict(x=torch.zeros(5, 4)), "'x' must have 3 columns"),
    (dict(edge_attr=torch.full((2, 1), 4)), "'edge_attr' must .* categories from 0 to 3")])
def test_missing_attributes_are_named(change, words):
    own = model(edge_features=[4], encodings={'pe': 2})
    with pytest.raises(ValueError, match=words):
        own(Data(**{**graph(5).to_dict(), **change}))


@pytest.mark.parametrize('options, name', [
    (dict(joins_edges=True), 'joins_edges'), (dict(virtual_nodes=-1), 'virtual_nodes'),
    (dict(local=None), 'local'),
    (dict(joins_edges=True, source=LearnedMaskSource(2, 9)), 'joins_edges'),
    (dict(local='transformer', channels=9), 'channels'), (dict(norm='nosuch'), 'norm'),
    (dict(source='Full()', attention=GraphAttention(8, 2, 'Full()')), 'source')])
def test_options_that_do_not_fit_are_refused(options, name):
    with pytest.raises(ValueError, match=f"'{name}'"):
        GraphTransformer(3, 2, **{**dict(channels=8, heads=2, num_layers=2), **options})
