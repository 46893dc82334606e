"""Refusals leave every file of a run as it was, whenever they come."""

import csv
import shutil
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import experiments
from analysis.commands import COMMANDS
from experiments import cli, predict, train
from experiments.papers.study import Study
from experiments.runs.checkpoints import BEST, LAST, PREVIOUS, write_checkpoint
from experiments.runs.command import run_or_exit
from tests.experiments.own_files import write_table

pytestmark = pytest.mark.slow

ENCODER = '--model.init_args.model.init_args.encoder.init_args'
SMALL = [f'{ENCODER}.{name}={value}' for name, value in
         {'channels': 8, 'heads': 2, 'num_layers': 1, 'hidden_channels': 8}.items()]
LR = '--model.init_args.lr=0.5'


class Place:
    """A finished run, its data, a run of another learning rate, and a study."""

    def __init__(self, folder):
        self.run, self.other, self.data = folder / 'run', folder / 'other', folder / 'my.csv'
        self.study, self.cache = Study('study', 'smoke', folder / 'studies'), folder / 'cache'

    @property
    def last(self):
        return str(self.run / 'checkpoints' / LAST)

    @property
    def options(self):
        return ['--config', str(cli.CONFIGS / 'text.yaml'), f'--data.path={self.data}',
                f'--data.cache={self.cache}', '--data.vocab_size=120', '--trainer.accelerator=cpu',
                '--trainer.max_epochs=2', '--trainer.enable_progress_bar=false', *SMALL]

    def fit(self, *options, folder=None):
        train.main(['fit', *self.options, f'--trainer.default_root_dir={folder or self.run}',
                    *options])

    def resume(self, *options):
        self.fit(f'--ckpt_path={self.last}', *options)

    def test(self, *options, checkpoint=None):
        train.main(['test', '--config', str(self.run / 'config.yaml'),
                    f'--ckpt_path={checkpoint or self.last}', *options])

    def files(self):
        # That of a lock is of no run.
        return {path: path.read_bytes() for path in self.run.parent.rglob('*')
                if path.is_file() and not path.name.endswith('.lock')
                and self.cache not in path.parents}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp('trained'))
    write_table(place.data)
    place.fit()
    place.fit(LR, '--trainer.max_epochs=1', folder=place.other)
    place.study.trained('run', *place.options)
    return place


@pytest.fixture
def place(trained):
    """A copy of everything, where its options find it."""
    moved = trained.run.parent.rename(trained.run.parent.with_name('kept'))
    shutil.copytree(moved, trained.run.parent)
    yield trained
    shutil.rmtree(trained.run.parent)
    moved.rename(trained.run.parent)


def more_classes(place):
    with place.data.open('a', newline='') as file:
        csv.writer(file).writerows([(f'how goals are {word}', 'sport') for word in 'abcdefgh'])


def damaged(name):
    def damage(place):
        (place.run / name).write_bytes(b'{')
    return damage


def of_another_size(place):
    """Without what tells of which run it is, as earlier versions left it."""
    checkpoint = torch.load(place.last, weights_only=True)
    del checkpoint['callbacks']['RunFolder']['identity']
    name = 'model.encoder.token_embedding.weight'
    checkpoint['state_dict'][name] = checkpoint['state_dict'][name][:7].clone()
    for name in LAST, PREVIOUS:
        write_checkpoint(checkpoint, Path(place.last).with_name(name))


def as_before(place):
    pass


REFUSED = {
    'another model': (as_before, lambda place: place.resume(f'{ENCODER}.channels=4')),
    'weights of another model': (of_another_size, lambda place: place.resume()),
    'another rate': (as_before, lambda place: place.resume(LR)),
    'another seed': (as_before, lambda place: place.resume('--seed_everything=5')),
    'another order': (as_before, lambda place: place.resume('--data.seed=5')),
    'more classes': (more_classes, lambda place: place.resume()),
    'more classes, anew': (more_classes, lambda place: place.fit()),
    'more classes, tested': (more_classes, lambda place: place.test()),
    'more classes in a study': (
        more_classes, lambda place: place.study.trained('run', *place.options)),
    'another number of processes': (as_before, lambda place: place.resume(
        '--trainer.devices=2', '--trainer.strategy=ddp', '--trainer.max_epochs=3')),
    'fewer epochs': (as_before, lambda place: place.resume('--trainer.max_epochs=1')),
    'damaged checkpoint': (lambda place: [damaged(f'checkpoints/{name}')(place)
                                          for name in (LAST, PREVIOUS)],
                           lambda place: place.resume()),
    'damaged summary': (damaged('summary.json'), lambda place: place.fit()),
    'damaged summary, tested': (damaged('summary.json'), lambda place: place.test()),
    'damaged summary of a study': (
        lambda place: (place.study.out / 'smoke/runs/run/summary.json').write_bytes(b'{'),
        lambda place: place.study.trained('run', *place.options)),
    'unknown option': (as_before, lambda place: place.resume('--unknown=1')),
    'unreadable data': (damaged('../my.csv'), lambda place: place.resume()),
    'no data': (lambda place: place.data.unlink(), lambda place: place.resume()),
    'the checkpoint of another run': (
        as_before, lambda place: place.resume(f'--ckpt_path={place.other}/checkpoints/{LAST}')),
    'the folder of another run': (
        as_before, lambda place: place.resume(f'--trainer.default_root_dir={place.other}')),
    'another config': (as_before, lambda place: place.fit(LR)),
    'seeds over one run': (as_before, lambda place: place.fit('--seeds=2')),
    'a test of another run': (as_before, lambda place: place.test(
        checkpoint=place.other / 'checkpoints' / LAST)),
    'another study': (as_before, lambda place: place.study.trained('run', *place.options, LR)),
    'a study over a run': (
        lambda place: (place.study.out / 'smoke/runs/run/options.json').unlink(),
        lambda place: place.study.trained('run', *place.options, LR)),
    'predicted with no such class': (damaged('config.yaml'), lambda place: predict.predict(
        str(place.run), str(place.data), str(place.run / 'summary.json'))),
    'an analysis of no example': (as_before, lambda place: COMMANDS['spectrum'](
        ['--checkpoint', place.last, '--example', '100000', '--out', str(place.run)])),
    'at work': (as_before, lambda place: at_work(place)),
}


def at_work(place):
    with FileLock(place.run / '.lock'):
        place.resume('--trainer.max_epochs=3')


@pytest.mark.parametrize('case', REFUSED)
def test_refused_means_untouched(case, place, capsys):
    change, command = REFUSED[case]
    change(place)
    before = place.files()
    with pytest.raises(SystemExit) as stop:
        run_or_exit(lambda: command(place))
    line = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2 and 'error: ' in line, line
    assert place.files() == before
    if change is as_before:
        experiments.load_run(place.run)


def test_what_was_refused_is_still_tested_and_predicted(place, tmp_path):
    for case in 'another model', 'fewer epochs', 'another config', 'seeds over one run':
        with pytest.raises(ValueError):
            REFUSED[case][1](place)
    before = (place.run / 'summary.json').read_bytes()
    place.test(checkpoint=place.run / 'checkpoints' / BEST)
    assert (place.run / 'summary.json').read_bytes() == before
    predict.predict(str(place.run), str(place.data), str(tmp_path / 'out.csv'))


def test_the_same_command_keeps_a_finished_run(place, capsys):
    before = place.files()
    place.fit()
    assert place.files() == before
    assert f'{place.run} already contains this run, which is finished' in capsys.readouterr().err


def test_the_same_command_goes_on_with_a_run_that_was_killed(place, capsys):
    before = torch.load(place.last, weights_only=True)['state_dict']
    (place.run / 'summary.json').unlink()
    Path(place.last).unlink()
    (place.run / '.curves-ab_cd012.png').touch()  # as a process leaves it that is killed
    place.fit()
    after = torch.load(place.last, weights_only=True)['state_dict']
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert f'resuming from {Path(place.last).with_name(PREVIOUS)}' in capsys.readouterr().err
    assert not list(place.run.glob('.*'))


def test_a_run_that_moves_with_its_data_goes_on(place, tmp_path, monkeypatch):
    monkeypatch.setattr(place, 'data', place.data.rename(tmp_path / 'elsewhere.csv'))
    place.resume('--trainer.max_epochs=3')
    assert torch.load(place.last, weights_only=True)['epoch'] == 2


def test_data_that_changed_are_told_in_a_test_elsewhere(place, tmp_path, capsys):
    with place.data.open('a', newline='') as file:
        csv.writer(file).writerow(('bread and rain', 'food'))
    place.test(f'--trainer.default_root_dir={tmp_path}')
    assert "'data.init_args.path' names other data" in capsys.readouterr().err


def test_seeds_are_all_of_the_same_data(tmp_path):
    place = Place(tmp_path)
    write_table(place.data)
    place.fit('--seeds=1', '--trainer.max_epochs=1')
    write_table(place.data, seed=1)
    before = place.files()
    with pytest.raises(ValueError, match="'data.init_args.path' must be unchanged .*seed0"):
        place.fit('--seeds=2', '--trainer.max_epochs=1')
    assert place.files() == before
