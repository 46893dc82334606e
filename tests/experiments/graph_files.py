"""Small files in the formats of data sets of PyG and OGB, which their own classes read."""

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

SIZES = 1, 7, 4  # nodes of a graph; a node alone has no edges


def path_edges(size):
    ends = torch.arange(size - 1)
    return torch.cat([torch.stack([ends, ends + 1]), torch.stack([ends + 1, ends])], dim=1)


def zinc(root):
    """Pickles of molecules, and the numbers of those of the subset."""
    (root / 'raw').mkdir(parents=True)
    for part in ('train', 'val', 'test'):
        molecules = []
        for number, size in enumerate(SIZES):
            bonds = torch.zeros(size, size, dtype=torch.int8)
            bonds[tuple(path_edges(size))] = 1 + number
            molecules.append({'num_atom': size, 'atom_type': torch.arange(size) % 28,
                              'bond_type': bonds,
                              'logP_SA_cycle_normalized': torch.tensor([number - .5])})
        (root / f'raw/{part}.pickle').write_bytes(pickle.dumps(molecules))
        (root / f'raw/{part}.index').write_text('0,1,2\n')


def peptides(root, targets, name):
    folder = root / name / 'raw'
    folder.mkdir(parents=True)
    for part in ('train', 'val', 'test'):
        torch.save([(torch.arange(9 * size).view(size, 9) % 5,
                     torch.arange(6 * (size - 1)).view(-1, 3) % 3, path_edges(size),
                     targets[number:number + 1]) for number, size in enumerate(SIZES)],
                   folder / f'{part}.pt')


def peptides_func(root):
    peptides(root, torch.eye(3, 10), 'peptides-func')


def peptides_struct(root):
    peptides(root, torch.linspace(-1, 2, 33).view(3, 11), 'peptides-struct')


def pascalvoc(root):
    folder = root / 'pascalvoc-sp/raw'
    folder.mkdir(parents=True)
    for part in ('train', 'val', 'test'):
        graphs = [(torch.linspace(-1, 1, 14 * size).view(size, 14),
                   torch.linspace(0, 1, 4 * (size - 1)).view(-1, 2), path_edges(size),
                   [node % 21 for node in range(20, 20 + size)]) for size in SIZES]
        (folder / f'{part}.pickle').write_bytes(pickle.dumps(graphs))


def molhiv(root):
    folder = root / 'ogbg_molhiv'
    for part in ('raw', 'split/scaffold'):
        (folder / part).mkdir(parents=True)
    (folder / 'RELEASE_v1.txt').touch()
    sizes = np.array(3 * SIZES)
    edges = np.concatenate([path_edges(size)[:, :size - 1].T for size in sizes])
    tables = {'edge': edges, 'edge-feat': np.ones((len(edges), 3), int),
              'node-feat': np.arange(9 * sum(sizes)).reshape(-1, 9) % 6,
              'num-node-list': sizes[:, None], 'num-edge-list': sizes[:, None] - 1,
              'graph-label': np.arange(9)[:, None] % 2}
    for name, table in tables.items():
        write_csv(folder / f'raw/{name}.csv.gz', table)
    for number, part in enumerate(('train', 'valid', 'test')):
        write_csv(folder / f'split/scaffold/{part}.csv.gz', np.arange(3)[:, None] + 3 * number)


def write_csv(path, table):
    path.write_bytes(gzip.compress(''.join(
        ','.join(map(str, row)) + '\n' for row in table.tolist()).encode()))


def planetoid(root):
    """6 nodes for training, 500 for validation and the last 10, in another order, for test."""
    folder = root / 'Cora/raw'
    folder.mkdir(parents=True)
    x = sp.csr_matrix(np.eye(516, 4, dtype=np.float32))
    y = np.eye(3, dtype=np.int32)[np.arange(516) % 3]
    graph = {node: [(node + 1) % 516, (node - 1) % 516] for node in range(516)}
    arrays = {'x': x[:6], 'tx': x[506:], 'allx': x[:506], 'y': y[:6], 'ty': y[506:],
              'ally': y[:506], 'graph': graph}
    for name, array in arrays.items():
        (folder / f'ind.cora.{name}').write_bytes(pickle.dumps(array))
    order = [515, 510, 506, 507, 508, 509, 511, 512, 513, 514]
    (folder / 'ind.cora.test.index').write_text('\n'.join(map(str, order)) + '\n')


def wikics(root):
    """Three divisions with the same test nodes."""
    (root / 'raw').mkdir(parents=True)
    masks = [[(node + number) % 4 == 0 for node in range(12)] for number in range(3)]
    validation = [[(node + number) % 4 == 1 for node in range(12)] for number in range(3)]
    (root / 'raw/data.json').write_text(json.dumps({
        'features': [[node * .5, -1.] for node in range(12)],
        'labels': [node % 3 for node in range(12)],
        'links': [[(node + 1) % 12] for node in range(12)], 'train_masks': masks,
        'val_masks': validation, 'stopping_masks': validation,
        'test_mask': [node > 8 for node in range(12)]}))


def tu(root):
    """Ten graphs without features of nodes, each with one edge in both directions."""
    folder = root / 'COLLAB/raw'
    folder.mkdir(parents=True)
    first = range(1, 31, 3)
    (folder / 'COLLAB_A.txt').write_text(''.join(
        f'{node}, {node + 1}\n{node + 1}, {node}\n' for node in first))
    (folder / 'COLLAB_graph_indicator.txt').write_text(''.join(
        f'{1 + node // 3}\n' for node in range(30)))
    (folder / 'COLLAB_graph_labels.txt').write_text(''.join(
        f'{1 + number % 2}\n' for number in range(10)))


def imdb(root):
    """Movies, whose genre is asked, directors and actors: 4, 2 and 3 nodes."""
    (root / 'raw').mkdir(parents=True)
    sizes = 4, 2, 3
    for number, size in enumerate(sizes):
        sp.save_npz(root / f'raw/features_{number}.npz', sp.csr_matrix(np.eye(size, 2 + number)))
    np.save(root / 'raw/labels.npy', np.array([0, 2, 1, 0]))
    np.savez(root / 'raw/train_val_test_idx.npz', train_idx=[0, 3], val_idx=[1], test_idx=[2])
    links = np.zeros((9, 9))
    links[[0, 1, 2, 3], [4, 4, 5, 5]] = links[[0, 1, 2, 3], [6, 7, 8, 6]] = 1
    sp.save_npz(root / 'raw/adjM.npz', sp.csr_matrix(links + links.T))


# The writer, the class of PyG, and its arguments.
FORMS = {
    'zinc': (zinc, 'ZINC', {'subset': True}),
    'peptides_func': (peptides_func, 'LRGBDataset', {'name': 'Peptides-func'}),
    'peptides_struct': (peptides_struct, 'LRGBDataset', {'name': 'Peptides-struct'}),
    'pascalvoc': (pascalvoc, 'LRGBDataset', {'name': 'PascalVOC-SP'}),
    'molhiv': (molhiv, 'ogbg-molhiv', {}),
    'planetoid': (planetoid, 'Planetoid', {'name': 'Cora'}),
    'wikics': (wikics, 'WikiCS', {'is_undirected': True}),
    'tu': (tu, 'TUDataset', {'name': 'COLLAB'}),
    'imdb': (imdb, 'IMDB', {}),
}


def written(form: str, root: Path) -> tuple[str, str, dict]:
    """Write a data set; return its name, folder and arguments."""
    write, name, arguments = FORMS[form]
    write(root)
    return name, str(root), arguments
