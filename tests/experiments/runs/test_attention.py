"""The option ``--attention``: a config of attention over any config of a model."""

import os
from pathlib import Path

import pytest
import torch
import yaml
from torch_geometric.data import Data

from experiments import train
from experiments.runs.attention import with_attention
from experiments.runs.shipped import CONFIGS, OF_GRAPHS, OF_SEQUENCES, attention_names
from tests.experiments.own_files import write_images, write_table, write_tokens

TEXT, GRAPHS = str(CONFIGS / 'text.yaml'), str(CONFIGS / 'graphs/own.yaml')
ENCODER = '--model.init_args.model.init_args.encoder.init_args'
SHORT = ['--trainer.max_epochs=1', '--trainer.accelerator=cpu', '--trainer.limit_train_batches=1']


def trained(*options):
    train.main(['fit', *options, *SHORT])
    folder = max(Path('runs').rglob('config.yaml'), key=os.path.getmtime).parent
    return folder, yaml.safe_load((folder / 'config.yaml').read_text())['model']['init_args']


@pytest.mark.parametrize('words, folder', [
    (['--attention', 'sbm', '--config', TEXT, '--x=1'], OF_SEQUENCES),
    (['-c', GRAPHS, '--x=1', '--attention=sbm'], OF_GRAPHS),
    ([f'--config={TEXT}', '--x=1', '--attention=full', '--attention', 'sbm'], OF_SEQUENCES)])
def test_an_attention_is_laid_over_the_other_configs(words, folder):
    *before, option, path, root, place, last = with_attention(words)
    assert before == [word for word in words if word in ('--config', '-c', TEXT, GRAPHS)
                      or word.startswith('--config=')]
    assert (option, path, last) == ('--config', str(folder / 'sbm.yaml'), '--x=1')
    assert root == '--trainer.default_root_dir' and place.endswith('_sbm')


@pytest.mark.parametrize('words, said', [
    (['--config', TEXT, '--attention', 'smb'], "no 'attention' 'smb'; did you mean sbm"),
    (['--config', GRAPHS, '--attention', 'zinc'], "no 'attention' 'zinc'; there are block_model"),
    (['--model', 'x', '--attention', 'sbm'], "'attention' requires 'config'")])
def test_what_no_attention_is_raises(words, said):
    with pytest.raises(ValueError, match=said):
        with_attention(words)


@pytest.mark.slow
@pytest.mark.parametrize('name', attention_names(OF_SEQUENCES))
def test_texts_are_classified_with_every_attention(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, model = trained(
        '--config', TEXT, '--data.path', str(write_table(Path('my.csv'))), '--data.vocab_size',
        '120', '--data.max_length', '16', '--attention', name, f'{ENCODER}.channels', '16')
    encoder = model['model']['init_args']['encoder']['init_args']
    assert folder == Path(f'runs/text_{name}')
    sizes = {'heads': 4, 'head_channels': 4, 'size': 16}
    assert all(value == sizes[size] for size, value in encoder['source']['init_args'].items()
               if size in sizes)
    assert (model['density_weight'] > 0) == (name == 'sbm')


@pytest.mark.slow
@pytest.mark.parametrize('kind, write', [('image_folder', write_images), ('tokens', write_tokens)])
def test_other_data_take_block_models(kind, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / 'my.npz')
    _, model = trained('--config', str(CONFIGS / f'{kind}.yaml'), '--data.path', str(path),
                       '--attention', 'sbm')
    source = model['model']['init_args']['encoder']['init_args']['source']['init_args']
    assert (source['heads'], source['head_channels']) == (4, 16)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['sbm', 'exphormer'])
def test_graphs_take_attention(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save([Data(x=torch.randn(5, 2), y=torch.tensor([float(i)]),
                     edge_index=torch.randint(5, (2, 8))) for i in range(6)], 'my.pt')
    folder, model = trained('--config', GRAPHS, '--data.path', 'my.pt', '--data.cache', 'cache',
                            '--attention', name)
    assert folder == Path(f'runs/graphs/own_{name}')
    assert (model['density_weight'] > 0) == (name == 'sbm')
