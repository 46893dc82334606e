"""Several seeds, loggers, and what is not installed."""

import csv
import json
import statistics
import sys
from pathlib import Path

import pytest

from experiments import train

CONFIG = str(Path(__file__).parents[1] / 'config.yaml')
pytestmark = pytest.mark.slow


def fit(folder, *options):
    train.main(['fit', '--config', CONFIG, '--trainer.default_root_dir', str(folder),
                '--trainer.max_epochs', '1', *options])


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp('seeds')
    fit(folder, '--seeds', '2', '--logger', 'csv')
    return folder


def test_each_seed_has_its_run_and_the_summary_their_spread(swept):
    runs = [json.loads((swept / f'seed{seed}/summary.json').read_text()) for seed in (3, 4)]
    assert [run['seed'] for run in runs] == [3, 4] and runs[0]['loss'] != runs[1]['loss']
    summary = json.loads((swept / 'summary.json').read_text())
    assert summary['seeds'] == [3, 4] and 'parameters' not in summary['mean']
    for name in ('loss', 'accuracy'):
        values = [run[name] for run in runs]
        assert summary['mean'][name] == pytest.approx(statistics.mean(values))
        assert summary['standard deviation'][name] == pytest.approx(statistics.stdev(values))
    rows = list(csv.DictReader((swept / 'seeds.csv').open()))
    assert [row['seed'] for row in rows] == ['3', '4', 'mean', 'standard deviation']


def test_finished_seeds_are_kept_when_more_are_asked_for(swept, capsys):
    before = {path: path.stat().st_mtime_ns for path in swept.glob('seed*/checkpoints/*')}
    arguments = list(sys.argv)
    fit(swept, '--seeds=3', '--logger', 'csv')
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert json.loads((swept / 'summary.json').read_text())['seeds'] == [3, 4, 5]
    output = capsys.readouterr().out
    assert 'seed 5' in output and 'seed 4' not in output and sys.argv == arguments


@pytest.mark.parametrize('name', ['tensorboard', 'wandb'])
def test_a_logger_that_is_not_installed_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setattr('experiments.runs.run_folder.find_spec', lambda package: None)
    with pytest.raises(ImportError, match=f"'logger' '{name}' .* pip install {name}"):
        fit(tmp_path / 'run', '--logger', name)
    assert not (tmp_path / 'run').exists()


def test_loggers_given_twice_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'logger' and 'trainer.logger' must not both be given"):
        fit(tmp_path / 'run', '--logger', 'csv', '--trainer.logger', 'CSVLogger',
            '--trainer.logger.save_dir', str(tmp_path))
    assert not (tmp_path / 'run').exists()
