"""Transforms of tasks on graphs, and the cache of those that are applied once."""

import importlib
import sys

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE, AddSelfLoops, BaseTransform

from experiments.tasks.graphs import OwnGraphs
from experiments.tasks.graphs.base import cache_key
from graphattn.transforms import LaplacianPE, RandomSignFlip


class AddOne(BaseTransform):
    """Counts how often it is applied."""

    times = 0

    def forward(self, data):
        type(self).times += 1
        data.x = data.x + 1
        return data


@pytest.fixture
def task(tmp_path):
    graphs = [Data(x=torch.full((size, 2), float(size)), y=torch.tensor([float(size)]),
                   edge_index=torch.tensor([[0, 1], [1, 0]])) for size in range(2, 12)]
    torch.save(graphs, tmp_path / 'mine.pt')
    AddOne.times = 0

    def make(**options):
        made = OwnGraphs(str(tmp_path / 'mine.pt'), cache=tmp_path / 'cache', batch_size=4,
                         **options)
        made.setup()
        return made
    return make


def cached(folder):
    return sorted((folder / 'cache').iterdir())


def all_x(task):
    return torch.cat([graph.x for part in ('train', 'val', 'test') for graph in task.data[part]])


def test_pre_transforms_are_applied_once_to_each_graph_and_read_later(task, tmp_path):
    first = task(pre_transforms=[AddOne()])
    assert AddOne.times == 10
    again = task(pre_transforms=[AddOne()])
    assert AddOne.times == 10
    plain = task()
    assert torch.equal(all_x(first), all_x(again))
    assert torch.equal(all_x(first), all_x(plain) + 1)
    assert {path.suffix for path in cached(tmp_path)} == {'.pt'}


def flip(content):
    """Change one bit of a value of ``x``: the file can be read as before."""
    place = content.index(torch.full((4,), 4.).numpy().tobytes())
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1:]


@pytest.mark.parametrize('damage', [flip, lambda content: content[:-20], lambda content: b'',
                                    lambda content: b'\x80\x04.' * 20], ids=[
                                        'flipped', 'half written', 'empty', 'a pickle'])
def test_a_damaged_file_is_computed_again(task, tmp_path, damage):
    first = all_x(task(pre_transforms=[AddOne()]))
    for path in cached(tmp_path):
        try:
            path.write_bytes(damage(path.read_bytes()))
        except ValueError:  # this part has no graph of this size
            continue
    AddOne.times = 0
    assert torch.equal(all_x(task(pre_transforms=[AddOne()])), first)
    assert AddOne.times > 0
    AddOne.times = 0
    task(pre_transforms=[AddOne()])
    assert AddOne.times == 0


def graph(**changes):
    kwargs = {'x': torch.arange(4.).view(2, 2), 'edge_index': torch.tensor([[0, 1], [1, 0]]),
              'y': torch.tensor([1]), 'name': 'a', **changes}
    return Data(**{name: value for name, value in kwargs.items() if value is not None})


KEYS = {
    'same': ([graph()], [AddRandomWalkPE(2)]),
    'a value': ([graph(x=torch.arange(1., 5).view(2, 2))], [AddRandomWalkPE(2)]),
    'a shape': ([graph(x=torch.arange(4.).view(1, 4))], [AddRandomWalkPE(2)]),
    'a type': ([graph(x=torch.arange(4.).view(2, 2).view(torch.int32))], [AddRandomWalkPE(2)]),
    'edges': ([graph(edge_index=torch.tensor([[0, 1], [0, 1]]))], [AddRandomWalkPE(2)]),
    'targets': ([graph(y=torch.tensor([0]))], [AddRandomWalkPE(2)]),
    'an attribute without tensor': ([graph(name='b')], [AddRandomWalkPE(2)]),
    'an attribute more': ([graph(z=torch.tensor([1]))], [AddRandomWalkPE(2)]),
    'an attribute less': ([graph(name=None)], [AddRandomWalkPE(2)]),
    'two graphs': ([graph(), graph()], [AddRandomWalkPE(2)]),
    'no graph': ([], [AddRandomWalkPE(2)]),
    'a setting': ([graph()], [AddRandomWalkPE(3)]),
    'another transform': ([graph()], [LaplacianPE(2)]),
    'two transforms': ([graph()], [AddRandomWalkPE(2), AddSelfLoops()]),
    'their order': ([graph()], [AddSelfLoops(), AddRandomWalkPE(2)]),
}


def test_each_input_alone_changes_the_key():
    keys = {name: cache_key(*inputs) for name, inputs in KEYS.items()}
    assert len(set(keys.values())) == len(KEYS)
    assert cache_key([graph()], [AddRandomWalkPE(2)]) == keys['same']


def test_the_source_of_a_transform_is_part_of_the_key(tmp_path, monkeypatch):
    keys = []
    monkeypatch.syspath_prepend(tmp_path)
    for version in '+ 1', '+ 21':
        (tmp_path / 'own_transform.py').write_text(
            'from torch_geometric.transforms import BaseTransform\n'
            'class Add(BaseTransform):\n    def forward(self, data):\n'
            f'        data.x = data.x {version}\n        return data\n')
        monkeypatch.delitem(sys.modules, 'own_transform', raising=False)
        keys.append(cache_key([graph()], [importlib.import_module('own_transform').Add()]))
    assert None not in keys and keys[0] != keys[1]


def test_transforms_that_cannot_be_pickled_are_applied_without_cache(task, tmp_path):
    class Local(AddOne):
        pass

    task(pre_transforms=[Local()])
    task(pre_transforms=[Local()])
    assert Local.times == 20 and not (tmp_path / 'cache').exists()


def test_signs_of_eigenvectors_change_from_epoch_to_epoch_only(task):
    made = task(pre_transforms=[LaplacianPE(1, is_undirected=True)],
                transforms=[RandomSignFlip('laplacian_eigenvector_pe')])
    places, collate = made._examples('train')
    batches = [collate([(epoch, place) for place in range(len(places))]).laplacian_eigenvector_pe
               for epoch in (0, 0, 1, 2, 3)]
    assert torch.equal(batches[0], batches[1])
    assert not all(torch.equal(batches[0], other) for other in batches[2:])
    assert all(torch.equal(batches[0].abs(), other.abs()) for other in batches)
    for part in ('val', 'test'):  # which nothing changes
        for graph, again in zip(made.data[part], made.data[part]):
            assert torch.equal(graph.laplacian_eigenvector_pe, again.laplacian_eigenvector_pe)
