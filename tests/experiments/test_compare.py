"""Runs beside each other: options, metrics and curves."""

import pandas as pd
import pytest
import yaml

from experiments.compare import compare
from experiments.runs.command import run_or_exit
from experiments.runs.summary import write_summary


def write_run(folder, seed, lr, accuracy):
    folder.mkdir(parents=True)
    (folder / 'config.yaml').write_text(yaml.safe_dump({
        'seed_everything': seed, 'model': {'init_args': {'lr': lr, 'heads': 4}},
        'trainer': {'default_root_dir': str(folder)}}))
    write_summary(folder, {'accuracy': accuracy, 'epochs': 2, 'density': {'a': .2, 'b': .4}})
    (folder / 'metrics.csv').write_text(f'epoch,val/accuracy\n1,\n2,{accuracy}\n')
    return folder


def test_runs_are_compared_with_their_seeds(tmp_path):
    one = write_run(tmp_path / 'one', 0, .1, .5)
    for seed, accuracy in enumerate([.6, .8]):
        write_run(tmp_path / f'two/seed{seed}', seed, .2, accuracy)
    compare([one, tmp_path / 'two', one], tmp_path / 'out')
    options = pd.read_csv(tmp_path / 'out/options.csv')
    assert options.values.tolist() == [['model.lr', .1, .2]]
    metrics = pd.read_csv(tmp_path / 'out/metrics.csv', index_col='metric')
    assert metrics.columns.tolist() == ['one', 'two', 'sd two']
    assert metrics.loc['accuracy'].tolist() == pytest.approx([.5, .7, .1 * 2 ** .5])
    assert metrics.loc['runs', 'two'] == 2 and metrics.loc['density', 'two'] == pytest.approx(.3)
    assert (tmp_path / 'out/curves.png').exists()
    compare([one], tmp_path / 'out')
    assert not (tmp_path / 'out/options.csv').exists()


@pytest.mark.parametrize('name, said', [
    ('', 'must be folders of runs'), ('none', 'must be folders of runs'),
    ('begun', 'must be finished')])
def test_what_is_no_run_is_one_line(name, said, tmp_path, capsys):
    (write_run(tmp_path / 'begun', 0, .1, .5) / 'summary.json').unlink()
    with pytest.raises(SystemExit):
        run_or_exit(lambda: compare([tmp_path / name], tmp_path / 'out'))
    line, = capsys.readouterr().err.splitlines()
    assert said in line and not (tmp_path / 'out').exists()
