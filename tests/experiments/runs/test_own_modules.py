"""A module of the user works in every command by ``--import``, and in none without it."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from analysis import commands
from experiments import load_run, predict, train
from experiments.benchmarks import attention as benchmark
from experiments.benchmarks.measure import run_benchmark
from experiments.papers import runner
from experiments.runs.command import run_function, run_or_exit
from graphattn.utils.trust import importing
from tests.analysis.conftest import save_no_picture
from tests.forked import forked

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[1] / 'config.yaml'
MINE = """
from dataclasses import dataclass
import torch
from graphattn import patterns, sources

@dataclass(frozen=True, repr=False)
class Comb(patterns.Pattern):
    step: int = 8
    def edges(self, num_queries, num_keys, generator):
        query = torch.arange(num_queries).repeat(3)
        key = query + torch.tensor([-1, 0, 1]).repeat_interleave(num_queries) * self.step
        return torch.stack([key, query])[:, (0 <= key) & (key < num_keys)]

patterns.register('comb', lambda step=8: Comb(step) | patterns.SlidingWindow(1))

class Combs(sources.PatternSource):
    def __init__(self, step: int):
        super().__init__(patterns.parse(f'comb(step={step})'))
"""
# The source of each of two layers: by a registered name, and by a class.
SOURCES = ['comb(step=4)', {'class_path': 'mine.Combs', 'init_args': {'step': 8}}]


def command(folder, run, *words):
    """How a process ends that runs a command in a folder, with these words as its command line."""
    def work():
        os.chdir(folder)
        sys.argv = ['graphattn', *words]
        Figure.savefig = save_no_picture
        run()
        print('mine' in sys.modules)

    ended, = forked(work)
    return ended


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp('own')
    (folder / 'mine.py').write_text(MINE)
    config = yaml.safe_load(CONFIG.read_text())
    encoder = config['model']['init_args']['model']['init_args']['encoder']['init_args']
    encoder |= {'source': SOURCES, 'num_layers': 2}
    config['model']['init_args']['density_weight'] = 0.
    (folder / 'mine.yaml').write_text(yaml.safe_dump(config))
    np.save(folder / 'new.npy', np.ones((2, 64), np.int64))
    ended = command(folder, lambda: run_or_exit(train.main), 'fit', '--config', 'mine.yaml',
                    '--import', 'mine', '--trainer.max_epochs=1',
                    '--trainer.default_root_dir=run')
    assert ended.returncode == 0, ended
    return folder


RUN = ['--checkpoint', 'run', '--samples=1']
COMMANDS = {
    'test': (lambda: run_or_exit(train.main), ['test', '--config', 'run/config.yaml', '--ckpt_path',
                                               'run/checkpoints/last.ckpt',
                                               '--trainer.default_root_dir=tested']),
    'predict': (lambda: run_function(predict.predict, as_positional=False),
                ['--run', 'run', '--input', 'new.npy']),
    'study': (runner.command, ['patterns', '--scale=smoke', '--patterns=[comb]']),
    'benchmark': (lambda: run_benchmark(benchmark.main),
                  ['--quick', '--pattern=comb', '--only=[numba]', '--nodes=[16]']),
    **{name: (lambda name=name: commands.main([name, *sys.argv[1:]]), [*RUN, *options])
       for name, options in (('spectrum', []), ('report', ['--time_limit=1']))},
    'pattern': (lambda: commands.main(['spectrum', *sys.argv[1:]]), ['--pattern=Comb(2)',
                                                                     '--n=32'])}


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_knows_what_is_imported_and_nothing_else(name, trained):
    run, words = COMMANDS[name]
    refused = command(trained, run, *words)
    assert refused.returncode == 2 and '--import' in refused.stderr.splitlines()[-1], refused
    for option in ['--import', 'mine'], ['--import=./mine.py']:
        ended = command(trained, run, *words, *option)
        assert ended.returncode == 0 and ended.stdout.endswith('True\n'), ended


def test_a_missing_import_is_one_sentence(trained):
    ended = command(trained, lambda: run_or_exit(train.main), 'fit', '--config', 'mine.yaml')
    assert ended.stderr.startswith("error: no module named 'mine'") and ended.returncode == 2
    assert ended.stderr.count('\n') == 1 and '--import mine' in ended.stderr


def test_other_modules_stay_refused(trained, tmp_path):
    config = yaml.safe_load((trained / 'run/config.yaml').read_text())
    encoder = config['model']['init_args']['model']['init_args']['encoder']['init_args']
    encoder['source'][1]['class_path'] = 'mineral.Combs'  # begins like the module that is trusted
    shutil.copytree(trained / 'run', tmp_path / 'run')
    (tmp_path / 'run/config.yaml').write_text(yaml.safe_dump(config))
    (tmp_path / 'mineral.py').write_text('print("it was executed")')
    (tmp_path / 'mine.py').write_text(MINE)
    np.save(tmp_path / 'new.npy', np.ones((2, 64), np.int64))
    for name in 'predict', 'test', 'spectrum':
        run, words = COMMANDS[name]
        ended = command(tmp_path, run, *words, '--import', 'mine')
        assert ended.returncode == 2 and 'mineral.Combs is not trusted' in ended.stderr, ended
        assert 'executed' not in ended.stdout


@pytest.mark.parametrize('value, message', [
    ('nowhere', 'a module in {here}'), ('no/mine.py', 'a module in {here}/no'),
    ('./json.py', 'rename the file')])
def test_what_cannot_be_imported(value, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', [*sys.path])
    Path('json.py').write_text('')
    with importing(['--import', '', '--n', '3']) as rest:
        assert rest == ['--n', '3']
    with pytest.raises(ImportError, match=message.format(here=tmp_path)):
        with importing(['--import', value, '--n', '3']):
            pass


def test_an_import_ends_with_the_command_and_reaches_its_processes(trained):
    def work():
        with importing(['--import', 'mine', '--n', '3']) as words:
            assert words == ['--n', '3'] and load_run('run')
            with importing(words):  # the command line of a process that the command starts
                assert load_run('run')
        with pytest.raises(ValueError, match='mine.Combs is not trusted'):
            load_run('run')
        assert load_run('run', trust=['mine'])

    ended = command(trained, work)
    assert ended.returncode == 0, ended
