"""Data sets of PyG and OGB, read from files in their formats."""

import pytest
import torch
from torch_geometric.data import HeteroData

from experiments.data.graph_parts import PARTS
from experiments.data.pyg_datasets import homogeneous, pyg_dataset
from tests.experiments.graph_files import FORMS, written

# Level, target, outputs, features of nodes and edges, and targets of each part.
FOUND = {
    'zinc': ('graph', 'values', 1, [7], [4], [3, 3, 3]),
    'peptides_func': ('graph', 'labels', 10, [5] * 9, [1, 2, 3], [3, 3, 3]),
    'peptides_struct': ('graph', 'values', 11, [5] * 9, [1, 2, 3], [3, 3, 3]),
    'pascalvoc': ('node', 'classes', 21, 14, 2, [12, 12, 12]),
    'molhiv': ('graph', 'labels', 1, [4, 5, 6] * 3, [2] * 3, [3, 3, 3]),
    'planetoid': ('node', 'classes', 3, 4, None, [6, 500, 10]),
    'wikics': ('node', 'classes', 3, 2, None, [3, 3, 3]),
    'tu': ('graph', 'classes', 2, 1, None, [8, 1, 1]),
    'imdb': ('node', 'classes', 3, 2 + 3 + 4 + 3, [4], [2, 1, 1]),
}


def read(form, root, **options):
    if form == 'molhiv':
        pytest.importorskip('ogb')
    name, root, arguments = written(form, root)
    return pyg_dataset(name, root, arguments, **options)


def num_targets(parts, part):
    graphs = parts.parts[part]
    return sum(int(graph[f'{part}_mask'].sum()) if f'{part}_mask' in graph else len(graph.y)
               for graph in graphs)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('form', FORMS)
def test_features_and_targets_of_a_data_set_are_found(form, tmp_path):
    parts = read(form, tmp_path)
    level, target, out_channels, features, edge_features, sizes = FOUND[form]
    assert (parts.level, parts.target, parts.out_channels) == (level, target, out_channels)
    assert parts.features_of('x') == features
    assert parts.features_of('edge_attr') == edge_features
    assert [num_targets(parts, part) for part in PARTS] == sizes
    assert str(FORMS[form][1]) in parts.about


def test_one_of_several_masks_is_chosen(tmp_path):
    name, root, arguments = written('wikics', tmp_path)
    first, second = (pyg_dataset(name, root, arguments, split=split).parts['train'][0]
                     for split in (0, 1))
    assert first.train_mask.nonzero().flatten().tolist() == [0, 4, 8]
    assert second.train_mask.nonzero().flatten().tolist() == [3, 7, 11]
    assert first.test_mask.equal(second.test_mask)
    with pytest.raises(ValueError, match=r"'split' must.*0.*\(got 3\)"):
        pyg_dataset(name, root, arguments, split=3)


def test_a_seed_divides_graphs_without_parts(tmp_path):
    name, root, arguments = written('tu', tmp_path)
    first, again, other = ([graph.y.item() for graph in pyg_dataset(
        name, root, arguments, seed=seed).parts['train']] for seed in (0, 0, 3))
    assert first == again != other


@pytest.mark.parametrize('name, write, words', [
    ('Zink', None, "'dataset' .*got 'Zink'"), ('KarateClub', None, 'got train_mask'),
    ('WikiCS', 'not json', "'root'.*JSONDecodeError"),
    ('WikiCS', '{"features": []}', "'root'.*KeyError")])
@pytest.mark.filterwarnings('ignore')
def test_what_cannot_be_read_is_named_in_one_line(name, write, words, tmp_path):
    if write is not None:
        (tmp_path / 'raw').mkdir()
        (tmp_path / 'raw/data.json').write_text(write)
    with pytest.raises(ValueError, match=words) as raised:
        pyg_dataset(name, str(tmp_path))
    assert '\n' not in str(raised.value)


def citations():
    """Return a graph in the form of OGB's MAG, in which only papers have features and classes."""
    graph = HeteroData()
    graph['paper'].x, graph['paper'].y = torch.arange(6.).view(3, 2), torch.tensor([1, 0, 2])
    graph['author'].num_nodes = 2
    for number, part in enumerate(PARTS):
        graph['paper'][f'{part}_mask'] = torch.arange(3) == number
    graph['author', 'writes', 'paper'].edge_index = torch.tensor([[0, 1, 1], [0, 1, 2]])
    graph['paper', 'cites', 'paper'].edge_index = torch.tensor([[2], [0]])
    return graph


def test_the_type_of_nodes_with_targets_must_be_clear():
    graph = citations()
    graph['author'].y = torch.zeros(2, 1)
    for kind in (None, 'venue'):
        with pytest.raises(ValueError, match=rf"'node_type' .* paper, author \(got {kind}\)"):
            homogeneous(graph, kind)
    with pytest.warns(UserWarning, match='left out.*: y of paper, train_mask of paper'):
        missing = homogeneous(graph, 'author').y.isnan()
    assert missing.flatten().tolist() == [True] * 3 + [False] * 2
