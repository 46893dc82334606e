"""Several tasks and seeds, and the average of the papers."""

import csv
import json
import subprocess
import sys
from subprocess import CompletedProcess

import pandas as pd
import pytest
import yaml

from experiments import train
from experiments.data.text.glue_files import TASKS, read_test_rows
from experiments.modules.measures import BEST, LAST
from experiments.papers.sparsebert import glue_submission
from experiments.papers.sparsebert.glue_table import COLUMNS, main, table
from experiments.predict import predict
from experiments.runs.command import run_or_exit
from tests.experiments.glue_files import MNLI_FRONT, write_pretrained, write_task
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


OF_TESTS = {
    'MNLI': MNLI_FRONT, 'QQP': ['id', 'question1', 'question2'],
    'QNLI': ['index', 'question', 'sentence'], 'SST-2': ['index', 'sentence'],
    'CoLA': ['index', 'sentence'], 'RTE': ['index', 'sentence1', 'sentence2'],
    'STS-B': ['index', 'genre', 'filename', 'year', 'old_index', 'source1', 'source2', 'sentence1',
              'sentence2'],
    'MRPC': ['index', '#1 ID', '#2 ID', '#1 String', '#2 String']}
SENTENCES = [('the cat sees', 'a dog'), ('a "red" house', 'not big'), ('the tree', 'likes the cat')]


def write_test(folder, task):
    for name in TASKS[task].test:
        rows = [OF_TESTS[task]]
        for number, sentences in enumerate(SENTENCES):
            known = dict(zip(TASKS[task].text, sentences))
            rows.append([str(number)] + [known.get(column, 'x') for column in OF_TESTS[task][1:]])
        (folder / f'{name}.tsv').write_text('\n'.join(map('\t'.join, rows)) + '\n')


@pytest.fixture(scope='module')
def submitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp('glue')
    pretrained, _ = write_pretrained(folder / 'pretrained')
    for task in ('CoLA', 'MNLI', 'STS-B'):
        write_task(folder / 'data' / task, task)
        write_test(folder / 'data' / task, task)
        config = {'trainer': {'max_epochs': 1, 'accelerator': 'cpu', 'enable_progress_bar': False,
                              'default_root_dir': str(folder / 'runs' / task)},
                  'model': {'class_path': 'experiments.modules.FineTuning',
                            'init_args': {'pretrained': str(pretrained), 'task': task, 'lr': .1}},
                  'data': {'class_path': 'experiments.tasks.Glue', 'init_args': {
                      'path': str(folder / 'data' / task), 'task': task, 'max_length': 24}}}
        (folder / 'config.yaml').write_text(yaml.safe_dump(config))
        train.main(['fit', '--config', str(folder / 'config.yaml')])
    glue_submission.submit(folder / 'runs', folder / 'data', folder / 'out')
    return folder


@pytest.mark.slow
def test_every_row_has_its_label_or_score(submitted):
    assert {path.name for path in (submitted / 'out').iterdir()} == {
        'CoLA.tsv', 'MNLI-m.tsv', 'MNLI-mm.tsv', 'STS-B.tsv'}
    for path in (submitted / 'out').iterdir():
        header, *rows = csv.reader(path.open(), delimiter='\t')
        assert header == ['index', 'prediction'] and [row[0] for row in rows] == ['0', '1', '2']
        said = [row[1] for row in rows]
        if path.stem == 'STS-B':
            assert all(0 <= float(score) <= 5 and len(score) == 5 for score in said)
        else:
            assert set(said) <= set(TASKS[path.stem.partition('-')[0]].classes)


@pytest.mark.slow
def test_what_is_predicted_is_what_is_handed_in(submitted, tmp_path):
    for task, column in (('CoLA', 'label'), ('STS-B', 'score')):
        predict(str(submitted / 'runs' / task), str(submitted / 'data' / task / 'test.tsv'),
                str(tmp_path / 'said.csv'), batch_size=2)
        said = list(csv.DictReader((tmp_path / 'said.csv').open()))
        handed_in = list(csv.DictReader((submitted / f'out/{task}.tsv').open(), delimiter='\t'))
        assert [row['example'] for row in said] == [row['index'] for row in handed_in]
        if task == 'CoLA':
            assert [row['label'] for row in said] == [row['prediction'] for row in handed_in]
        else:
            assert [min(5., max(0., float(row[column]))) for row in said] == pytest.approx(
                [float(row['prediction']) for row in handed_in], abs=6e-4)


@pytest.mark.parametrize('task', TASKS)
def test_test_sets_are_read_as_they_are_distributed(task, tmp_path):
    write_test(tmp_path, task)
    for name in TASKS[task].test:
        rows = list(read_test_rows(tmp_path / f'{name}.tsv', TASKS[task]))
        width = len(TASKS[task].text)
        assert rows == [(str(number), sentences[:width])
                        for number, sentences in enumerate(SENTENCES)]


@pytest.mark.parametrize('content, match', [
    ('index\tsentence1\n0\ta\n', "line 1: .*'sentence2'"),
    ('index\tsentence1\tsentence2\n', 'at least one row'),
    ('index\tsentence1\tsentence2\nx\ta\tb\n', "line 2: .*'x'")])
def test_malformed_test_sets_are_refused(content, match, tmp_path):
    (tmp_path / 'test.tsv').write_text(content)
    with pytest.raises(ValueError, match=match):
        list(read_test_rows(tmp_path / 'test.tsv', TASKS['RTE']))


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'runs' must contain finished runs in folders named MNLI"):
        glue_submission.submit(tmp_path, tmp_path, tmp_path / 'out')
