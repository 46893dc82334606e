"""Every config of graph transformers takes a step on the smallest and on all graphs of a few in the
form of its data set."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch, Data

from experiments import train
from experiments.data import block_model_graphs
from experiments.runs.config_file import laid_over
from tests.experiments.graph_files import FORMS, written

pytestmark = pytest.mark.slow

CONFIGS = Path(train.__file__).parent / 'configs/graphs'
NAMES = sorted(str(path.relative_to(CONFIGS).with_suffix('')) for path in CONFIGS.rglob('*.yaml'))


def layers(name):
    """Return the files of a config, in the order in which the command line is given them."""
    path = CONFIGS / f'{name}.yaml'
    return [part for part in (path.parent.with_suffix('.yaml'), path) if part.exists()]


def data_of(name, dataset, folder, monkeypatch):
    """Return options that let a config read small data in the form of its own."""
    form, cache = name.rpartition('/')[2], {'cache': str(folder / 'cache')}
    if form == 'own':
        graphs = [Data(x=torch.randn(size, 2), y=torch.tensor([float(size)]),
                       edge_index=torch.randint(size, (2, 2 * size - 2)),
                       edge_attr=torch.randn(2 * size - 2, 3)) for size in (1, 4, 7) * 2]
        torch.save(graphs, folder / 'mine.pt')
        return {'path': str(folder / 'mine.pt'), **cache}
    if form in FORMS:
        kind, root, arguments = written(form, folder)
        own = laid_over(layers(name)[-1])['data']['init_args']
        assert own['dataset'] == kind and own.get('arguments', {}) == arguments
        return {'root': root, **cache}
    # Drawn by the true distribution, with fewer patterns.
    law = replace(block_model_graphs.DISTRIBUTIONS[dataset], num_graphs=(2, 1, 1))
    law = replace(law, num_patterns=min(law.num_patterns, 1))
    monkeypatch.setitem(block_model_graphs.DISTRIBUTIONS, dataset, law)
    return {'dataset': dataset, **cache}


def small(name):
    """Return sizes of a small model; what attends has them too."""
    own = laid_over(layers(name)[-1]).get('model', {})
    own = own.get('init_args', {}).get('model', {}).get('init_args', {})
    size = {'channels': 16, 'head_channels': 4}
    slots = {slot: {'init_args': {key: size[key] for key in size.keys() & own[slot]['init_args']}}
             for slot in ('source', 'attention') if own.get(slot)}
    return {'num_layers': 2, 'channels': 16, **slots}


def step(module, batch):
    module.zero_grad()
    module.train()
    loss = module.training_step(batch, 0)
    loss.backward()
    assert loss.isfinite()
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert gradients and all(bool(gradient.isfinite().all()) for gradient in gradients)
    module.validation_step(batch, 0)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('dataset', ['PATTERN', 'CLUSTER'])
@pytest.mark.parametrize('name', NAMES)
def test_a_config_takes_a_step_on_the_smallest_and_on_several_graphs(name, dataset, tmp_path,
                                                                     monkeypatch):
    if dataset == 'CLUSTER' and name.rpartition('/')[2] in {'own', *FORMS}:
        pytest.skip('the data set is fixed')
    if name.endswith('molhiv'):
        pytest.importorskip('ogb')
    over = {'trainer': {'accelerator': 'cpu', 'enable_progress_bar': False},
            'model': {'init_args': {'model': {'init_args': small(name)}}},
            'data': {'init_args': data_of(name, dataset, tmp_path, monkeypatch)}}
    cli = train.TrainCLI('fit', [word for part in (*layers(name), json.dumps(over))
                                 for word in ('--config', str(part))])
    cli.datamodule.setup()
    graphs = list(cli.datamodule.data['train'])
    smallest = min(graphs, key=lambda graph: graph.num_nodes)
    for batch in (Batch.from_data_list([smallest]), Batch.from_data_list(graphs)):
        step(cli.model, batch)
    assert all(parameter.grad is not None for parameter in cli.model.parameters())


def test_no_two_configs_leave_their_runs_in_one_folder():
    folders = [laid_over(CONFIGS / f'{name}.yaml')['trainer']['default_root_dir']
               for name in NAMES]
    assert len(folders) == len(set(folders)) > 0


def test_configs_name_measures_that_their_target_has():
    found = {laid_over(CONFIGS / f'{name}.yaml').get('select_on')
             for name in NAMES}
    assert found == {None, 'val/loss', 'val/mae', 'val/macro_f1', 'val/average_precision',
                     'val/roc_auc', 'val/balanced_accuracy'}
