"""GLUE's test sets, read as they are distributed, and the files that its server takes."""

import csv

import pytest
import yaml

from experiments import train
from experiments.data.text.glue_files import TASKS, read_test_rows
from experiments.papers.sparsebert import glue_submission
from experiments.predict import predict
from tests.experiments.glue_files import MNLI_FRONT, write_pretrained, write_task

pytestmark = pytest.mark.slow

HEADERS = {
    'MNLI': MNLI_FRONT, 'QQP': ['id', 'question1', 'question2'],
    'QNLI': ['index', 'question', 'sentence'], 'SST-2': ['index', 'sentence'],
    'CoLA': ['index', 'sentence'], 'RTE': ['index', 'sentence1', 'sentence2'],
    'STS-B': ['index', 'genre', 'filename', 'year', 'old_index', 'source1', 'source2', 'sentence1',
              'sentence2'],
    'MRPC': ['index', '#1 ID', '#2 ID', '#1 String', '#2 String']}
SENTENCES = [('the cat sees', 'a dog'), ('a "red" house', 'not big'), ('the tree', 'likes the cat')]


def write_test(folder, task):
    for name in TASKS[task].test:
        rows = [HEADERS[task]]
        for number, sentences in enumerate(SENTENCES):
            known = dict(zip(TASKS[task].text, sentences))
            rows.append([str(number)] + [known.get(column, 'x') for column in HEADERS[task][1:]])
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
