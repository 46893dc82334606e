"""Several tasks and seeds, and the average of the papers."""

import json
import subprocess
import sys
from subprocess import CompletedProcess

import pandas as pd
import pytest

from experiments import train
from experiments.modules.fine_tuning import BEST, LAST
from experiments.papers.sparsebert.glue_table import COLUMNS, main, table
from experiments.runs.command import run_or_exit
from tests.experiments.glue_files import write_pretrained, write_task
from tests.experiments.modules.test_fine_tuning import write_config
from tests.forked import forked

# BERT-base (ours) on the development sets, SparseBERT's Table 1.
PRINTED = {'MNLI-m': 85.4, 'MNLI-mm': 85.8, 'QQP': 88.2, 'QNLI': 91.5, 'SST-2': 92.9, 'CoLA': 62.1,
           'STS-B': 88.8, 'MRPC': 90.4, 'RTE': 69.0}
METRICS = {'QQP': 'f1', 'CoLA': 'matthews', 'STS-B': 'spearman', 'MRPC': 'f1'}


def write_results(folder, values):
    for column, value in values.items():
        task, _, part = column.partition('-m')
        name = {'': 'dev_matched', 'm': 'dev_mismatched'}[part] if task == 'MNLI' else 'dev'
        path = folder / task / 'dev.json'
        path.parent.mkdir(parents=True, exist_ok=True)
        report = json.loads(path.read_text()) if path.exists() else {LAST: {}, BEST: {}}
        metric = f'{METRICS.get(column, "accuracy")}/{name}'
        report[LAST][metric], report[BEST][metric] = value / 100 - 0.01, value / 100
        path.write_text(json.dumps(report))


def test_averages_are_those_of_the_paper_and_of_the_seeds(tmp_path):
    write_results(tmp_path / 'seed0', PRINTED)
    last, best = table(tmp_path)
    assert {column: round(best[column], 6) for column in COLUMNS} == PRINTED
    assert round(best['average'], 1) == 83.8  # as printed
    assert best['average'] - last['average'] == pytest.approx(1)
    write_results(tmp_path / 'seed1', {'CoLA': 60.1, 'RTE': 71.0})
    rows = {row['run']: row for row in table(tmp_path) if row['dev, after the'] == BEST}
    assert rows['seed1']['average'] == pytest.approx((60.1 + 71.0) / 2)
    assert rows['mean']['CoLA'] == pytest.approx(61.1)
    assert rows['mean']['QQP'] == rows['seed0']['QQP']


@pytest.fixture
def forks(monkeypatch):
    """Each run in a process that need not import again; there is a real one below."""
    monkeypatch.setattr('experiments.papers.sparsebert.glue_table.subprocess.run',
                        lambda command: forked(lambda: train.main(command[3:]))[0])


@pytest.mark.slow
def test_trains_the_tasks_and_leaves_a_table(tmp_path, capsys, forks):
    checkpoint, _ = write_pretrained(tmp_path / 'pretrained')
    config, _ = write_config(tmp_path, checkpoint, 'RTE')
    for task in ('CoLA', 'MNLI'):
        write_task(tmp_path / 'glue' / task, task)
    command = ['--config', str(config), '--pretrained', str(checkpoint),
               '--glue', str(tmp_path / 'glue'), '--out', str(tmp_path / 'out'),
               '--trainer.max_epochs', '1']
    main([*command, '--tasks', 'CoLA'])
    assert 'some rows here lack MNLI-m, MNLI-mm, QQP' in capsys.readouterr().out
    main([*command, '--tasks', 'MNLI'])
    rows = pd.read_csv(tmp_path / 'out/table.csv')
    assert rows['dev, after the'].tolist() == [LAST, BEST]
    for task, column, metric in (('CoLA', 'CoLA', 'matthews/dev'),
                                 ('MNLI', 'MNLI-mm', 'accuracy/dev_mismatched')):
        written = json.loads((tmp_path / 'out/seed0' / task / 'dev.json').read_text())
        assert rows[column][0] == pytest.approx(100 * written[LAST][metric])
        assert written[LAST]['epoch'] == 1


def test_a_task_without_a_folder_is_refused_before_any_is_trained(tmp_path):
    write_task(tmp_path / 'CoLA', 'CoLA')
    with pytest.raises(ValueError, match="'glue' must .*without RTE"):
        main(['--config', 'none.yaml', '--pretrained', 'none.ckpt', '--glue', str(tmp_path),
              '--out', str(tmp_path / 'out'), '--tasks', 'CoLA', 'RTE'])
    assert not (tmp_path / 'out').exists()


def test_a_run_that_fails_is_no_table(tmp_path, monkeypatch, capsys):
    def run_here(command):
        """Run here the command of another process, which takes seconds to start."""
        assert command[:3] == [sys.executable, '-m', 'experiments.train']
        with pytest.raises(SystemExit) as stop:
            run_or_exit(lambda: train.main(command[3:]))
        return CompletedProcess(command, stop.value.code)

    monkeypatch.setattr(subprocess, 'run', run_here)
    write_task(tmp_path / 'CoLA', 'CoLA')
    with pytest.raises(ChildProcessError, match='CoLA with seed 0 failed'):
        main(['--config', 'none.yaml', '--pretrained', 'none.ckpt', '--glue', str(tmp_path),
              '--out', str(tmp_path / 'out'), '--tasks', 'CoLA'])
    assert 'none.yaml' in capsys.readouterr().err


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(ValueError, match="'out' must contain a finished run"):
        table(tmp_path)
