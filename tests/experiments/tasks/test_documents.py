"""Long documents: what is encoded, batches by length, metrics, and runs that resume."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import accuracy_score, f1_score

from experiments import train
from experiments.data.text.document_files import PARTS, Document, TextFolders
from experiments.data.text.tokenizer import load_tokenizer
from experiments.modules.document_classification import DocumentClassification, new_metrics
from experiments.modules.measures import BEST, LAST
from experiments.tasks import Documents
from experiments.tasks.batch_stream import BatchStream
from experiments.tasks.documents import EncodedDocuments, collate
from experiments.tasks.tokenized import spread_of_lengths
from graphattn.models import Encoder, SequenceClassifier
from graphattn.sources import PatternSource
from tests.experiments.document_folders import write_imdb


def test_the_spread_of_lengths():
    assert spread_of_lengths([3, 1, 2, 2, 1000, 2]) == (
        '1,010 tokens: mean 168.3, least 1, 25 % 2, median 2, 75 % 3, 95 % 751, longest 1,000')
    assert spread_of_lengths([]) == 'no tokens'


def write_config(folder, **data):
    """A config of seconds; ``folder`` gets the documents."""
    write_imdb(folder / 'aclImdb')
    encoder = {'num_tokens': 150, 'max_length': 24, 'channels': 16, 'heads': 2, 'num_layers': 1,
               'dropout': 0.1, 'source': {'class_path': 'graphattn.sources.PatternSource',
                                          'init_args': {'pattern': 'SlidingWindow(2)'}}}
    config = {
        'seed_everything': 1,
        'trainer': {'max_epochs': 3, 'accelerator': 'cpu', 'devices': 1,
                    'enable_progress_bar': False, 'default_root_dir': str(folder / 'run')},
        'model': {
            'class_path': 'experiments.modules.DocumentClassification',
            'init_args': {'lr': 0.01, 'model': {
                'class_path': 'graphattn.models.SequenceClassifier',
                'init_args': {'num_classes': 2, 'encoder': {
                    'class_path': 'graphattn.models.Encoder', 'init_args': encoder}}}}},
        'data': {'class_path': 'experiments.tasks.Documents', 'init_args': {
            'documents': {'class_path': 'experiments.data.text.document_files.TextFolders',
                          'init_args': {'path': str(folder / 'aclImdb')}},
            'vocab_size': 150, 'max_length': 24, 'batch_size': 5,
            'cache': str(folder / 'cache'), **data}}}
    path = folder / 'config.yaml'
    path.write_text(yaml.safe_dump(config))
    return path


def fit(config, *options):
    train.main(['fit', '--config', str(config), *options])


def load(run):
    return torch.load(run / 'checkpoints/last.ckpt', weights_only=True)


@pytest.fixture(scope='module')
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp('learned')
    fit(write_config(folder))
    return folder


def encoded(folder, max_length=24, part='test'):
    documents = TextFolders(str(folder / 'aclImdb')).read().parts[part]
    tokenizer = load_tokenizer(folder / 'run/tokenizer.json')
    return documents, tokenizer, EncodedDocuments(documents, tokenizer, max_length)


@pytest.mark.slow
def test_the_tokenizer_comes_from_the_training_part_alone(learned):
    vocabulary = load_tokenizer(learned / 'run/tokenizer.json').get_vocab()
    assert 'great' in vocabulary
    write_imdb(learned / 'other')
    for file in (learned / 'other/test/pos').iterdir():
        file.write_text('zebra ' * 20)
    task, same = (Documents(TextFolders(str(learned / name)), vocab_size=150,
                            cache=str(learned / 'cache')) for name in ('other', 'aclImdb'))
    assert task._trained_tokenizer == same._trained_tokenizer and same._trained_tokenizer.exists()
    same.vocab_size = 140
    assert task._trained_tokenizer != same._trained_tokenizer


def stream(lengths, batch_size=4, processes=1, rank=0, seed=5, shuffle=True, done=0):
    return BatchStream(len(lengths), batch_size, processes, rank, lengths=lengths, seed=seed,
                       shuffle=shuffle,
                        batches_done=lambda: done)


LENGTHS = np.random.default_rng(0).integers(10, 4000, 1003)


def test_batches_hold_documents_of_similar_length():
    batches = [[index for _, index in batch] for batch in stream(LENGTHS)]
    assert len(batches) == 251 and sorted(sum(batches, [])) == list(range(1003))
    spread = [np.ptp(LENGTHS[batch]) for batch in batches]
    assert np.mean(spread) < 200  # of any four: 2,390
    first, again = list(stream(LENGTHS)), list(stream(LENGTHS))
    assert first == again != list(stream(LENGTHS, seed=6))
    assert first != list(stream(LENGTHS, done=251))
    # Neither within an epoch nor within a piece of it does the length tell the place.
    means = [LENGTHS[batch].mean() for batch in batches]
    assert abs(np.corrcoef(means, np.arange(251))[0, 1]) < 0.2
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.2


@pytest.mark.parametrize('num_classes', [2, 5])
def test_metrics_against_scikit_learns(num_classes):
    torch.manual_seed(0)
    target = torch.randint(num_classes, (120,))
    predicted = torch.where(torch.rand(120) < 0.5, target, torch.randint(num_classes, (120,)))
    metrics = new_metrics(num_classes)
    for begin in range(0, 120, 50):
        metrics.update(predicted[begin:begin + 50], target[begin:begin + 50])
    assert {name: float(value) for name, value in metrics.compute().items()} == pytest.approx({
        'accuracy': accuracy_score(target, predicted),
        'micro_f1': f1_score(target, predicted, average='micro'),
        'macro_f1': f1_score(target, predicted, average='macro')}, abs=1e-6)


@pytest.mark.slow
def test_a_run_learns_and_leaves_its_metrics(learned):
    run = learned / 'run'
    report = json.loads((run / 'dev.json').read_text())
    summary = json.loads((run / 'summary.json').read_text())
    assert report['classes'] == 2 and report[LAST]['epoch'] == 3
    assert report[BEST]['macro_f1'] >= report[LAST]['macro_f1']
    assert summary['macro_f1'] > 0.9  # the first word tells
    assert set(report[LAST]) == {'epoch', 'step', 'loss', 'accuracy', 'micro_f1', 'macro_f1',
                                 'density/layer0/all_heads'}

    # What the saved model says, without loaders and metrics.
    model = DocumentClassification(small_model())
    model.load_state_dict(load(run)['state_dict'])
    for part, values in (('dev', report[LAST]), ('test', summary)):
        documents, _, examples = encoded(learned, part=part)
        with torch.no_grad():
            logits = torch.cat([model.model.eval()(*collate([examples[index]])[:2])
                                for index in range(len(examples))])
        target = [label for _, label in documents]
        predicted = logits.argmax(dim=-1).tolist()
        assert values['accuracy'] == pytest.approx(accuracy_score(target, predicted), abs=1e-6)
        assert values['macro_f1'] == pytest.approx(
            f1_score(target, predicted, average='macro'), abs=1e-6)
        assert values['loss'] == pytest.approx(float(torch.nn.functional.cross_entropy(
            logits, torch.tensor(target))), rel=1e-4)


def small_model(num_classes=2):
    encoder = Encoder(PatternSource('SlidingWindow(2)'), num_tokens=150, max_length=24,
                      channels=16, heads=2, num_layers=1, dropout=0.1)
    return SequenceClassifier(encoder, num_classes)


@pytest.mark.slow
def test_a_broken_run_resumes_as_if_nothing_had_been(learned, tmp_path):
    steps, saved = 22, 20
    config = write_config(tmp_path, cache=str(learned / 'cache'))
    every = ['--checkpoint_every', '4']  # an epoch has 15 batches
    with pytest.raises(RuntimeError, match='as told'):
        fit(config, *every, '--trainer.callbacks', 'tests.experiments.callbacks.Fail',
            '--trainer.callbacks.steps', str(steps))
    checkpoint = tmp_path / 'run/checkpoints/last.ckpt'
    assert load(tmp_path / 'run')['global_step'] == saved
    (tmp_path / 'run/config.yaml').unlink()  # which told of the callback
    fit(config, *every, '--ckpt_path', str(checkpoint))
    whole, resumed = load(learned / 'run'), load(tmp_path / 'run')
    assert whole['global_step'] == resumed['global_step'] == 45
    for name, value in whole['state_dict'].items():
        assert torch.equal(value, resumed['state_dict'][name]), name
    assert whole['dev'] == resumed['dev'] and len(whole['dev']) == 3


@pytest.mark.slow
@pytest.mark.parametrize('options, match', [
    (['--data.init_args.max_length', '25'], "'max_length' must be at most 24"),
    (['--data.init_args.max_length', '2'], "'max_length' must be at least 3"),
    (['--data.init_args.documents.init_args.path', 'nowhere'], 'folder train.*got nowhere'),
    (['--model.init_args.model.init_args.num_classes', '3'], r"'num_classes' .*\(got 3\)"),
    (['--model.init_args.model.init_args.encoder.init_args.num_tokens', '20'],
     "'num_tokens' of the encoder must be at least"),
    (['--data.init_args.tokenizer', 'nowhere.json'], "'tokenizer' cannot be read")])
def test_refused_before_a_folder_is_made(options, match, tmp_path):
    config = write_config(tmp_path)
    with pytest.raises(ValueError, match=match):
        fit(config, *options)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('labels, match', [
    ({'train': [0, 0], 'dev': [1], 'test': [0]}, "got none of 'b'"),
    ({'train': [0, 1], 'dev': [], 'test': [0]}, "'documents'.*none.*dev"),
])
def test_parts_and_classes_must_not_be_empty(labels, match):
    parts = {part: [Document(('text',), label) for label in labels[part]] for part in PARTS}
    source = SimpleNamespace(read=lambda: SimpleNamespace(classes=('a', 'b'), parts=parts))
    with pytest.raises(ValueError, match=match):
        _ = Documents(source).collection
