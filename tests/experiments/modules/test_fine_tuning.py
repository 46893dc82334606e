"""Fine-tuning: the metrics, what a run leaves, resuming, two processes, and what is refused."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
import yaml
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from experiments import train
from experiments.data.text.glue_files import TASKS
from experiments.data.text.tokenizer import train_tokenizer
from experiments.modules.fine_tuning import FineTuning, new_metrics
from experiments.modules.measures import BEST, LAST
from experiments.tasks import Glue
from tests.experiments.glue_files import write_pretrained, write_task
from tests.forked import forked


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
    return write_pretrained(tmp_path_factory.mktemp('pretrained') / 'run', 'learned')[0]


def write_config(folder, pretrained, task, num_train=24):
    """A config of seconds; ``folder`` gets the task's files."""
    written = write_task(folder / 'data', task, num_train=num_train, num_dev=9)
    config = {
        'seed_everything': 1,
        'trainer': {'max_epochs': 3, 'accelerator': 'cpu', 'devices': 1,
                    'enable_progress_bar': False, 'default_root_dir': str(folder / 'run')},
        'model': {'class_path': 'experiments.modules.FineTuning',
                  'init_args': {'pretrained': str(pretrained), 'task': task, 'lr': 0.01,
                                'dropout': 0.}},
        'data': {'class_path': 'experiments.tasks.Glue',
                 'init_args': {'path': str(folder / 'data'), 'task': task, 'batch_size': 6,
                               'max_length': 24}}}
    path = folder / 'config.yaml'
    path.write_text(yaml.safe_dump(config))
    return path, written


def fit(config, *options):
    train.main(['fit', '--config', str(config), *options])


def load(run):
    return torch.load(run / 'checkpoints/last.ckpt', weights_only=True)


@pytest.mark.parametrize('num_classes', [2, 3])
def test_metrics_of_classes_against_scikit_learns(num_classes):
    torch.manual_seed(0)
    target = torch.randint(num_classes, (200,))
    predicted = torch.where(torch.rand(200) < 0.6, target, torch.randint(num_classes, (200,)))
    metrics = new_metrics(num_classes)
    for part in range(0, 200, 50):
        metrics.update(predicted[part:part + 50], target[part:part + 50])
    values = {name: float(value) for name, value in metrics.compute().items()}
    expected = {'accuracy': accuracy_score(target, predicted),
                'macro_f1': f1_score(target, predicted, average='macro'),
                'matthews': matthews_corrcoef(target, predicted)}
    # The script's F1 counts, over all examples, hits of class 1 and confusions of it with class 0.
    hits = ((target == 1) & (predicted == 1)).sum()
    confused = ((target == 0) & (predicted == 1)).sum() + ((target == 1) & (predicted == 0)).sum()
    expected['f1' if num_classes == 2 else 'published_f1'] = float(2 * hits / (2 * hits + confused))
    assert values == pytest.approx(expected, abs=1e-6)
    if num_classes == 2:
        assert values['f1'] == pytest.approx(f1_score(target, predicted), abs=1e-6)
    else:
        assert values['published_f1'] > values['macro_f1'] + 0.05


def test_metrics_of_scores_against_scipys():
    torch.manual_seed(0)
    target = torch.randint(0, 21, (100,)).double() / 4
    predicted = (target + torch.randn(100)).double()
    metrics = new_metrics(0)
    metrics.update(predicted, target)
    expected = {'spearman': spearmanr(predicted, target)[0],
                'pearson': pearsonr(predicted, target)[0]}
    assert {name: float(value) for name, value in metrics.compute().items()} == pytest.approx(
        expected, abs=1e-6)


@pytest.mark.parametrize('num_classes, said, target', [
    (2, 0, [0, 1, 1, 0]), (3, 1, [0, 1, 1, 1]), (2, 1, [1, 1, 1, 1]), (3, 1, [0, 0, 0, 0])])
def test_who_always_says_the_same_has_no_correlation(target, said, num_classes):
    metrics = new_metrics(num_classes)
    metrics.update(torch.full((4,), said), torch.tensor(target))
    assert float(metrics.compute()['matthews']) == 0.


@pytest.mark.slow
@pytest.mark.parametrize('task', ['MNLI', 'STS-B'])
def test_a_run_learns_and_leaves_its_metrics(task, pretrained, tmp_path, capsys):
    config, written = write_config(tmp_path, pretrained, task, num_train=240)
    fit(config)
    run = tmp_path / 'run'
    report = json.loads((run / 'dev.json').read_text())
    last, best = report[LAST], report[BEST]
    metric = TASKS[task].metric
    assert report['task'] == task
    assert report['reported'] == [f'{metric}/{name}' for name in TASKS[task].dev]
    assert last['epoch'] == 3 and last['step'] == 120 and best['epoch'] in (1, 2, 3)
    assert sum(best[name] for name in report['reported']) >= sum(
        last[name] for name in report['reported'])
    assert all(best[name] > 0.6 for name in report['reported'])  # the first word tells the label

    # What the saved model says, computed without batches, loaders and torchmetrics.
    model = FineTuning(str(pretrained), task, dropout=0.)
    model.load_state_dict(load(run)['state_dict'])
    data = Glue(str(tmp_path / 'data'), task, str(pretrained.parents[1] / 'tokenizer.json'))
    for name in TASKS[task].dev:
        predicted, target = [], []
        for first, second, label in written[name]:
            encoding = data.tokenizer.encode(first, second)
            with torch.no_grad():
                output = model.model.eval()(
                    torch.tensor(encoding.ids), torch.tensor([0, len(encoding.ids)]),
                    segments=torch.tensor(encoding.type_ids))[0]
            classes = TASKS[task].classes
            predicted.append(int(output.argmax()) if classes else float(output))
            target.append(classes.index(label) if classes else float(label))
        expected = (accuracy_score(target, predicted) if task != 'STS-B'
                    else spearmanr(target, predicted)[0])
        assert last[f'{metric}/{name}'] == pytest.approx(expected, abs=1e-6)
    assert ('published_f1/dev_matched' in last) == (task == 'MNLI')

    summary = json.loads((run / 'summary.json').read_text())
    for name in report['reported']:
        assert summary[name] == pytest.approx(last[name])
    assert set(summary['density']) == {'all_layers/head0', 'all_layers/head1'}
    assert f'{task} {report["reported"][0]}: ' in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_count_every_example_once(pretrained, tmp_path):
    config, _ = write_config(tmp_path, pretrained, 'MNLI')
    ended = forked(lambda: train.main([
        'fit', '--config', str(config), '--trainer.devices', '2', '--trainer.strategy', 'ddp',
        '--trainer.max_epochs', '1', '--data.init_args.batch_size', '1']), ranks=2)
    assert [process.returncode for process in ended] == [0, 0], ended
    train.main(['test', '--config', str(config),
                '--trainer.default_root_dir', str(tmp_path / 'alone'),
                '--ckpt_path', str(tmp_path / 'run/checkpoints/last.ckpt')])
    together, alone = (json.loads((tmp_path / run / 'summary.json').read_text())
                       for run in ('run', 'alone'))
    last = json.loads((tmp_path / 'run/dev.json').read_text())[LAST]
    assert together['processes'] == 2 and alone['processes'] == 1
    # 9 examples: 5 and 4, which are 3 and 2 batches.
    names = [name for name in alone if '/dev_m' in name]
    assert len(names) == 10
    for name in names:
        assert together[name] == last[name] == pytest.approx(alone[name], abs=1e-6), name


@pytest.mark.slow
def test_the_best_epoch_has_the_best_mean_of_the_development_sets(pretrained, tmp_path):
    model = FineTuning(str(pretrained), 'MNLI')
    model.trainer = SimpleNamespace(is_global_zero=True, default_root_dir=tmp_path)
    model.dev = [{'epoch': epoch, 'accuracy/dev_matched': m, 'accuracy/dev_mismatched': mm}
                 for epoch, (m, mm) in enumerate([(.8, .2), (.7, .6), (.75, .5)], start=1)]
    model.dev[0]['pearson/dev'] = model.dev[1]['pearson/dev'] = math.nan
    model.on_fit_end()
    model.dev[1]['pearson/dev'] = None
    report = json.loads((tmp_path / 'dev.json').read_text())
    assert report[LAST] == model.dev[2] and report[BEST] == model.dev[1]


@pytest.mark.slow
@pytest.mark.parametrize('options, match', [
    (['--data.init_args.task', 'CoLA'], "'task' must be the same for model and data"),
    (['--data.init_args.max_length', '41'], "'max_length' must be at most 40"),
    (['--model.init_args.pretrained', 'nowhere/checkpoints/last.ckpt'], "'pretrained' cannot be"),
    (['--data.init_args.path', 'nowhere'], "'path' cannot be read: nowhere/train.tsv"),
    (['--data.init_args.tokenizer', 'other.json'], 'the tokenizer of the pre-training')])
def test_refused_before_a_folder_is_made(options, match, pretrained, tmp_path, monkeypatch):
    config, _ = write_config(tmp_path, pretrained, 'RTE')
    monkeypatch.chdir(tmp_path)
    train_tokenizer(lambda: ['bird'] * 3, 100).save('other.json')
    with pytest.raises(ValueError, match=match):
        fit(config, *options)
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_the_tokenizer_of_a_larger_model_is_refused(tmp_path):
    checkpoint, _ = write_pretrained(tmp_path / 'pretrained', num_tokens=20)
    config, _ = write_config(tmp_path, checkpoint, 'RTE')
    with pytest.raises(ValueError, match="'tokenizer' must be .* of the pre-trained model"):
        fit(config)
    assert not (tmp_path / 'run').exists()
