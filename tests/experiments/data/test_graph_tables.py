"""The user's own graphs: three formats of one graph, and what is refused."""

import pickle
import re
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data

from experiments.data.graph_tables import own_graphs

NODES = ['node,label,part,charge', *(f'{n},{"ab"[n % 2]},{part},{n / 2}' for n, part in enumerate(
    ['train', 'train', 'val', 'test']))]
EDGES = ['source,target,length', '0,1,1.5', '1,2,2.5', '3,3,0.5']


def tables(folder: Path, nodes: list[str] = NODES, edges: list[str] = EDGES,
           graphs: list[str] | None = None) -> Path:
    for name, rows in (('nodes', nodes), ('edges', edges), ('graphs', graphs)):
        if rows is not None:
            (folder / f'{name}.csv').write_text('\n'.join(rows) + '\n')
    return folder


def graphml(folder: Path) -> Path:
    graph = nx.Graph()
    for row in NODES[1:]:
        node, label, part, charge = row.split(',')
        graph.add_node(node, label=label, part=part, charge=float(charge))
    for row in EDGES[1:]:
        source, target, length = row.split(',')
        graph.add_edge(source, target, length=float(length))
    nx.write_graphml(graph, folder / 'own.graphml')
    return folder / 'own.graphml'


def saved(folder: Path) -> Path:
    read = own_graphs(tables(folder)).graphs[0]
    torch.save(read, folder / 'own.pt')
    return folder / 'own.pt'


@pytest.mark.parametrize('write', [tables, graphml, saved])
def test_all_formats_hold_the_same_graph(write, tmp_path):
    found = own_graphs(write(tmp_path), classes=('a', 'b') if write is saved else None)
    graph, = found.graphs
    assert (found.level, found.target, found.classes) == ('node', 'classes', ('a', 'b'))
    assert graph.y.tolist() == [0, 1, 0, 1] and graph.x.flatten().tolist() == [0., .5, 1., 1.5]
    edges = {(*edge, length) for edge, length in zip(graph.edge_index.T.tolist(),
                                                     graph.edge_attr.flatten().tolist())
             for edge in [tuple(edge)]}
    assert edges == {(0, 1, 1.5), (1, 0, 1.5), (1, 2, 2.5), (2, 1, 2.5), (3, 3, .5)}
    assert graph.edge_index.size(1) == 5
    assert [graph[f'{part}_mask'].nonzero().flatten().tolist()
            for part in ('train', 'val', 'test')] == [[0, 1], [2], [3]]


def test_targets_of_graphs(tmp_path):
    nodes = ['graph,node,size', *(f'g{g},{n},1' for g in range(10) for n in range(3))]
    edges = ['graph,source,target', *(f'g{g},0,1' for g in range(9))]
    graphs = ['graph,label', *(f'g{g},{g / 4}' for g in range(10))]
    found = own_graphs(tables(tmp_path, nodes, edges, graphs))
    assert (found.level, found.target, found.out_channels) == ('graph', 'values', 1)
    assert {part: len(some) for part, some in found.parts.items()} == {'train': 8, 'val': 1,
                                                                        'test': 1}
    assert sorted(float(graph.y) for graph in found.graphs) == [g / 4 for g in range(10)]


BAD = {
    'a missing column': (dict(nodes=['label', 'a']), 'nodes.csv.*node'),
    'an unknown node': (dict(edges=['source,target', '0,9']), r'edges.csv, line 2.*9'),
    'a repeated node': (dict(nodes=[*NODES, NODES[1]]), r"nodes.csv, line 6: .*got '0' twice"),
    'no label': (dict(nodes=[NODES[0], '0,,train,1', *NODES[2:]]), r'nodes.csv, line 2.*label'),
    'an unknown part': (dict(nodes=[NODES[0], '0,a,nosuch,1', *NODES[2:]]),
                        r'nodes.csv, line 2.*nosuch'),
    'a feature that is no number': (dict(nodes=[NODES[0], '0,a,train,x', *NODES[2:]]),
                                    r"nodes.csv, line 2.*'charge'"),
    'an infinite feature': (dict(nodes=[NODES[0], '0,a,train,inf', *NODES[2:]]),
                            r"nodes.csv, line 2.*'charge'"),
    'no node': (dict(nodes=[NODES[0]]), 'nodes.csv'),
    'one class': (dict(nodes=[NODES[0], *(f'{n},a,train,1' for n in range(4))]), 'classes')}


@pytest.mark.parametrize('change, words', BAD.values(), ids=BAD)
def test_malformed_tables_are_named_in_one_line(change, words, tmp_path):
    with pytest.raises(ValueError) as refused:
        own_graphs(tables(tmp_path, **change))
    assert re.search(words, str(refused.value)), refused.value
    assert '\n' not in str(refused.value)


def test_missing_files_are_named(tmp_path):
    for path in (tmp_path / 'none.pt', tmp_path):
        with pytest.raises(ValueError, match=re.escape(str(path))):
            own_graphs(path)


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path('harmed'),)


def test_code_in_a_file_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('own.pt').write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(ValueError, match='own.pt'):
        own_graphs(Path('own.pt'))
    assert not Path('harmed').exists()


@pytest.mark.parametrize('change, words', [
    (dict(edge_index=torch.tensor([[0], [9]])), 'edge_index.* .4. .*found 9'),
    (dict(x=torch.full((4, 1), torch.nan)), "'x' must be finite"),
    (dict(y=torch.tensor([0, 1])), "'y'"), (dict(edge_index=None), "'edge_index'"),
    (dict(edge_index=torch.eye(2).long().to_sparse()), "dense int64"),
    (dict(y=None), "'y'")])
def test_malformed_graphs_are_named(change, words, tmp_path):
    good = dict(x=torch.randn(4, 1), y=torch.tensor([0, 1, 0, 1]),
                edge_index=torch.tensor([[0, 1], [1, 0]]))
    torch.save([Data(**{**good, **change})] * 12, tmp_path / 'own.pt')
    with pytest.raises(ValueError, match=words):
        own_graphs(tmp_path / 'own.pt')
