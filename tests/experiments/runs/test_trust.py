"""A run of somebody else is data: whatever its files say, nothing of it is executed."""

import copy
import hashlib
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from analysis.commands import COMMANDS
from experiments import load_run, predict, train
from experiments.runs.checkpoints import LAST
from experiments.runs.command import run_or_exit
from experiments.runs.pretrained import pretrained_classifier
from graphattn.utils import building
from graphattn.utils.trust import trusting

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[1] / 'config.yaml'
MARKER = 'it_was_executed'
TOUCH = f'touch {MARKER}'
MODEL = 'model.init_args.model'
ENCODER = f'{MODEL}.init_args.encoder'
POPEN = {'class_path': 'subprocess.Popen', 'init_args': {'args': ['touch', MARKER]}}
HOSTILE = {'class_path': 'hostile.Thing'}

# What stands where in the config, and what the refusal names.
ATTEMPTS = {
    'a function that traces what it is given': (MODEL, {
        'class_path': 'torch.fx.symbolic_trace', 'init_args': {'root': 'hostile.run'}},
        'torch.fx'),
    'a shell': (MODEL, {'class_path': 'os.system', 'init_args': {'command': TOUCH}}, 'os.system'),
    'a process': (MODEL, POPEN, 'subprocess.Popen'),
    'eval': (MODEL, {'class_path': 'builtins.eval', 'init_args': {
        'source': f'open({MARKER!r}, "w")'}}, 'builtins.eval'),
    'a function with its arguments': (MODEL, {'class_path': 'functools.partial', 'init_args': {
        'func': 'os.system', 'args': [TOUCH]}}, 'functools.partial'),
    'a hub': (MODEL, {'class_path': 'torch.hub.load', 'init_args': {
        'repo_or_dir': '.', 'model': 'run', 'source': 'local'}}, 'torch.hub.load'),
    'a module that is imported': (MODEL, HOSTILE, 'hostile.Thing'),
    'a name alone': (MODEL, 'hostile.Thing', 'hostile.Thing'),
    'a class within a class': (f'{MODEL}.class_path', 'hostile.Thing', 'hostile.Thing'),
    'a source': (f'{ENCODER}.init_args.source', HOSTILE, 'hostile.Thing'),
    'an argument of a source': (f'{ENCODER}.init_args.source.init_args.fixed', POPEN,
                                'subprocess.Popen'),
    'five levels deep': (f'{ENCODER}.init_args.source', {
        'class_path': 'graphattn.sources.CausalSource', 'init_args': {'source': {
            'class_path': 'graphattn.sources.CausalSource', 'init_args': {'source': POPEN}}}},
        ''),
    'in a list of modules': (MODEL, {'class_path': 'torch.nn.ModuleList', 'init_args': {
        'modules': [POPEN]}}, 'subprocess.Popen'),
    'a callable of torch': (MODEL, {'class_path': 'torch.nn.TransformerEncoderLayer', 'init_args': {
        'd_model': 2, 'nhead': 1, 'activation': 'hostile.run'}}, 'hostile.run'),
    'a distance of torch': (MODEL, {
        'class_path': 'torch.nn.TripletMarginWithDistanceLoss', 'init_args': {
            'distance_function': 'hostile.run'}}, 'hostile.run'),
    'a class of torch that makes others': (MODEL, {
        'class_path': 'torch.nn.utils.skip_init', 'init_args': {
            'module_cls': 'hostile.Thing'}}, 'skip_init'),
    'by way of this project': (MODEL, {
        'class_path': 'experiments.train.os.system', 'init_args': {'command': TOUCH}}, 'system'),
    'by way of torch': (MODEL, {
        'class_path': 'torch.nn.modules.module.functools.partial', 'init_args': {
            'func': 'os.system', 'args': [TOUCH]}}, 'functools.partial'),
    'a name of a name': (MODEL, {'class_path': 'torch.nn.functional.F.os.system', 'init_args': {
        'command': TOUCH}}, 'torch.nn.functional'),
    'a function of this project': (MODEL, {
        'class_path': 'experiments.runs.pretrained.roberta', 'init_args': {
            'weights': 'hostile.bin', 'model': {'class_path': MODEL}}}, ''),
    'layers without end': (f'{ENCODER}.init_args.num_layers', 10**9, 'far more tensors'),
    'data': ('data', HOSTILE, 'hostile.Thing'),
    'a shell for data': ('data', {'class_path': 'os.system', 'init_args': {'command': TOUCH}},
                         'os.system'),
    'data in another file': ('data', 'other.yaml', ''),
    'an argument of data': ('data.init_args.batch_size', POPEN, ''),
    'a callback': ('trainer.callbacks', [POPEN], 'subprocess.Popen'),
    'what a callback calls': ('trainer.callbacks', [{
        'class_path': 'lightning.pytorch.callbacks.LambdaCallback', 'init_args': {
            'on_test_start': 'hostile.run'}}], 'hostile.run'),
    'a logger': ('trainer.logger', HOSTILE, 'hostile.Thing'),
    'a strategy': ('trainer.strategy', HOSTILE, 'hostile.Thing'),
    'a profiler': ('trainer.profiler', HOSTILE, 'hostile.Thing'),
    'a plugin': ('trainer.plugins', [HOSTILE], 'hostile.Thing'),
    'an optimizer': ('optimizer', HOSTILE, ''),
    'a schedule': ('lr_scheduler', POPEN, ''),
    'another config': ('config', 'other.yaml', ''),
}


class Payload:
    def __reduce__(self):
        return os.system, (TOUCH,)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp('finished')
    train.main(['fit', '--config', str(CONFIG), '--trainer.default_root_dir', str(folder),
                '--trainer.max_epochs=1'])
    return folder


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """A run to be changed, and modules beside it that tell when they are imported."""
    shutil.copytree(finished, tmp_path / 'run')
    (tmp_path / 'hostile.py').write_text(
        f'import os\nos.system({TOUCH!r})\nimport torch\nclass Thing(torch.nn.Module): pass\n'
        f'def run(*_, **__): os.system({TOUCH!r})\n')
    (tmp_path / 'hubconf.py').write_text('from hostile import run\n')
    (tmp_path / 'other.yaml').write_text('class_path: hostile.Thing\n')
    (tmp_path / 'hostile.bin').write_bytes(pickle.dumps(Payload()))
    (tmp_path / 'config.json').write_text('{}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(building, 'CALLS', 1_000)  # which layers without end would come to first
    yield tmp_path / 'run'
    for name in 'hostile', 'mine':
        sys.modules.pop(name, None)


def entrances(run):
    last = str(run / 'checkpoints' / LAST)
    return {'load_run': lambda: load_run(run),
            'pretrained': lambda: pretrained_classifier(last, 2),
            'predict': lambda: predict.predict(str(run), 'hostile.py'),
            'spectrum': lambda: COMMANDS['spectrum'](['--checkpoint', last, '--samples=1',
                                                      '--out=results']),
            'test': lambda: train.main(['test', '--config', str(run / 'config.yaml'),
                                        '--ckpt_path', last, '--trainer.default_root_dir=tested'])}


def said_by(command, capsys):
    """Return the line of a command that is refused, nothing if it is not."""
    capsys.readouterr()
    try:
        run_or_exit(command)
    except SystemExit as stop:
        assert stop.code == 2
        return capsys.readouterr().err
    return ''


@pytest.mark.parametrize('attempt', ATTEMPTS)
def test_nothing_that_a_config_names_is_executed(attempt, run, capsys):
    place, value, named = ATTEMPTS[attempt]
    config = yaml.safe_load((run / 'config.yaml').read_text())
    part, names = config, place.split('.')
    if isinstance(value, dict) and value.get('init_args', {}).get('model') == {'class_path': MODEL}:
        value = copy.deepcopy(value)
        value['init_args']['model'] = config['model']['init_args']['model']
    for name in names[:-1]:
        part = part[name]
    part[names[-1]] = value
    (run / 'config.yaml').write_text(yaml.safe_dump(config))
    is_made = names[0] in ('model', 'data')  # whatever is done with the run; the rest by a test
    for entrance in ('load_run', 'spectrum', 'test', 'pretrained') if is_made else ('test',):
        said = said_by(entrances(run)[entrance], capsys)
        assert not Path(MARKER).exists() and 'hostile' not in sys.modules, entrance
        if names[0] == 'model' or entrance != 'pretrained':
            assert said and named in said, (entrance, said)


def test_nothing_that_yaml_says_is_executed(run, capsys):
    text = (run / 'config.yaml').read_text()
    (run / 'config.yaml').write_text(f'{text}\nmore: !!python/object/apply:os.system [{TOUCH!r}]\n')
    for entrance, command in entrances(run).items():
        assert 'python/object/apply' in said_by(command, capsys), entrance
        assert not Path(MARKER).exists(), entrance


def test_nothing_that_a_checkpoint_holds_is_executed(run, capsys):
    torch.save({'state_dict': Payload()}, run / 'checkpoints' / LAST)
    of_torch = (run / 'checkpoints' / LAST).read_bytes()
    for content in pickle.dumps({'state_dict': Payload()}), of_torch:
        for digest in (b'', hashlib.sha256(content).hexdigest().encode()):
            (run / 'checkpoints' / LAST).write_bytes(content + digest)
            for entrance, command in entrances(run).items():
                assert said_by(command, capsys), entrance
                assert not Path(MARKER).exists(), entrance


def test_what_the_caller_trusts_is_made(run, capsys):
    config = yaml.safe_load((run / 'config.yaml').read_text())
    config['model']['class_path'] = 'mine.Mine'
    config['trainer']['callbacks'] = [{'class_path': 'mine.Watch'}]
    (run / 'config.yaml').write_text(yaml.safe_dump(config))
    (run.parent / 'mine.py').write_text(
        'from lightning.pytorch.callbacks import Callback\n'
        'from experiments.modules import Classification\n'
        'class Mine(Classification):\n    pass\n'
        'class Watch(Callback):\n    pass\n')
    with pytest.raises(ValueError, match='mine.Mine is not trusted'):
        load_run(run)
    with trusting(['mine']):  # as --trust does for a training that takes up a pre-trained model
        assert type(load_run(run).module).__name__ == 'Mine'
    assert type(load_run(run, trust=['mine.']).module).__name__ == 'Mine'
    test = ['test', '--config', str(run / 'config.yaml'), '--ckpt_path',
            str(run / 'checkpoints' / LAST), '--trainer.default_root_dir=tested']
    with pytest.raises(ValueError, match=r'mine\.\w+ is not trusted'):
        train.main(test)
    train.main([*test, '--trust', 'mine'])
    assert Path('tested/summary.json').exists()
    import jsonargparse
    assert not jsonargparse._common.parsing_settings['import_paths_enforced']
