"""Long documents: what is encoded, batches by length, metrics, and runs that resume."""

import json
import math
from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import accuracy_score, f1_score

import experiments
from experiments import predict, train
from experiments.data.batch import TokenBatch
from experiments.data.text.document_files import PARTS, Document, Imdb
from experiments.data.text.tokenizer import load_tokenizer, special_tokens, train_tokenizer
from experiments.modules.document_classification import (
    BEST,
    LAST,
    DocumentClassification,
    new_metrics,
)
from experiments.tasks import Documents
from experiments.tasks.documents import EncodedDocuments, collate
from experiments.tasks.tokenized import BucketStream
from graphattn.models import Encoder, SequenceClassifier
from graphattn.sources import PatternSource
from tests.experiments.document_folders import write_imdb
from tests.experiments.glue_files import write_pretrained
from tests.forked import forked

ROOT = Path(__file__).parents[3]


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
            'documents': {'class_path': 'experiments.data.text.document_files.Imdb',
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
    documents = Imdb(str(folder / 'aclImdb')).read().parts[part]
    tokenizer = load_tokenizer(folder / 'run/tokenizer.json')
    return documents, tokenizer, EncodedDocuments(documents, tokenizer, max_length)


@pytest.mark.slow
def test_texts_without_labels_are_a_table(learned, tmp_path):
    documents = Imdb(str(learned / 'aclImdb')).read().parts['test']
    (tmp_path / 'new.jsonl').write_text('\n'.join(
        json.dumps({'text': document.text}) for document in documents))
    run = experiments.load_run(learned / 'run')
    lines, probability = zip(*predict.predictions(run, tmp_path / 'new.jsonl', batch_size=9))
    assert list(chain(*lines)) == [str(place + 1) for place in range(len(documents))]
    right = np.concatenate(probability).argmax(axis=1) == [label for _, label in documents]
    summary = json.loads((learned / 'run/summary.json').read_text())
    assert right.mean() == pytest.approx(summary['accuracy'])


@pytest.mark.slow
def test_predictions_have_the_names_of_the_classes(learned, tmp_path, monkeypatch):
    monkeypatch.setattr(Imdb, 'read', None)  # the collection may be gone
    (tmp_path / 'new.jsonl').write_text('{"text": "alone"}')
    predict.predict(str(learned / 'run'), str(tmp_path / 'new.jsonl'), str(tmp_path / 'out.csv'))
    header, row = (tmp_path / 'out.csv').read_text().splitlines()
    assert header == 'example,label,probability/negative,probability/positive'
    assert row.split(',')[1] in ('negative', 'positive')


@pytest.mark.slow
def test_documents_are_framed_and_cut(learned):
    documents, tokenizer, examples = encoded(learned)
    special = special_tokens(tokenizer)
    assert len(examples) == len(documents) == 22
    num_cut = 0
    for index, (text, label) in enumerate(documents):
        tokens, own_label = examples[index]
        whole = tokenizer.encode(text).ids  # frames as BERT does
        assert own_label == label and examples.full_lengths[index] == len(whole)
        assert len(tokens) == examples.lengths[index] == min(24, len(whole))
        assert tokens[0] == special.cls and tokens[-1] == special.sep
        assert tokens[:-1].tolist() == whole[:-1][:len(tokens) - 1]
        num_cut += len(whole) > 24
    assert 0 < num_cut < 22


@pytest.mark.slow
def test_the_tokenizer_comes_from_the_training_part_alone(learned):
    vocabulary = load_tokenizer(learned / 'run/tokenizer.json').get_vocab()
    assert 'great' in vocabulary
    write_imdb(learned / 'other')
    for file in (learned / 'other/test/pos').iterdir():
        file.write_text('zebra ' * 20)
    task = Documents(Imdb(str(learned / 'other')), vocab_size=150, cache=str(learned / 'cache'))
    same = Documents(Imdb(str(learned / 'aclImdb')), vocab_size=150, cache=str(learned / 'cache'))
    assert task._trained_tokenizer == same._trained_tokenizer and same._trained_tokenizer.exists()
    same.vocab_size = 140
    assert task._trained_tokenizer != same._trained_tokenizer


def stream(lengths, batch_size=4, processes=1, rank=0, seed=5, shuffle=True, done=0):
    return BucketStream(lengths, batch_size, processes, rank, seed=seed, shuffle=shuffle,
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


def test_every_document_once_over_all_processes_and_of_similar_length():
    ranks = [list(stream(LENGTHS, processes=3, rank=rank)) for rank in range(3)]
    seen = Counter(key for batches in ranks for batch in batches for key in batch)
    assert set(seen.values()) == {1} and len(seen) > 1000
    longest = np.array([[LENGTHS[[index for _, index in batch]].sum() for batch in batches[:80]]
                        for batches in ranks])
    assert np.median(longest.max(axis=0) / longest.min(axis=0)) < 1.2


@pytest.mark.parametrize('done', [100, 251, 400])
def test_a_stream_resumes_anywhere(done):
    whole = list(stream(LENGTHS)) + list(stream(LENGTHS, done=251)) + list(
        stream(LENGTHS, done=502))
    assert list(stream(LENGTHS, done=done)) == whole[done:done + 251]


@pytest.mark.parametrize('num', [1, 3, 4, 5, 8])
def test_few_documents_are_a_stream_too(num):
    batches = list(stream(np.arange(num) + 5))
    assert sorted(index for batch in batches for _, index in batch) == list(range(num))


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


def test_each_epoch_is_measured_anew():
    model = DocumentClassification(small_model())
    model.log_dict = lambda values: None
    tokens, label = torch.zeros(4, dtype=torch.long), torch.tensor([0, 1, 1, 1])
    batch = TokenBatch(tokens, torch.arange(5), label)
    for right, loss in ((False, 2.), (True, 1.)):
        logits = torch.nn.functional.one_hot(batch.label if right else 1 - batch.label).float()
        for part in (slice(0, 1), slice(1, 4)):
            model.log_pass('val', batch._replace(label=batch.label[part]),
                           torch.tensor(loss + part.start), logits[part], [])
        assert model._log_metrics('val') == {
            'loss': loss + 0.75, **dict.fromkeys(('accuracy', 'micro_f1', 'macro_f1'), right)}


def test_a_loss_that_is_no_number_is_none_in_the_report(tmp_path):
    model = DocumentClassification(small_model())
    model.trainer = SimpleNamespace(default_root_dir=tmp_path, is_global_zero=True)
    model.dev = [{'epoch': 1, 'loss': math.nan, 'macro_f1': 0.3}]
    model.on_fit_end()
    report = json.loads((tmp_path / 'dev.json').read_text(), parse_constant=pytest.fail)
    assert report[LAST] == report[BEST] == {'epoch': 1, 'loss': None, 'macro_f1': 0.3}


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
def test_a_pretrained_encoder(tmp_path):
    checkpoint, _ = write_pretrained(tmp_path / 'pretrained', 'learned')
    config = write_config(tmp_path, tokenizer=str(checkpoint.parents[1] / 'tokenizer.json'))
    settings = yaml.safe_load(config.read_text())
    settings['model']['init_args']['model'] = {
        'class_path': 'experiments.runs.pretrained.pretrained_classifier',
        'init_args': {'checkpoint': str(checkpoint), 'num_classes': 2}}
    config.write_text(yaml.safe_dump(settings))
    fit(config)
    before = torch.load(checkpoint, weights_only=True)['state_dict']
    after = load(tmp_path / 'run')['state_dict']
    name = 'model.encoder.token_embedding.weight'
    unused = (before[name] - after[name]).abs().amax(dim=1) < 1e-3
    assert before[name].shape == after[name].shape and 5 < unused.sum() < len(unused)


@pytest.mark.slow
def test_an_encoder_of_other_tokens_is_refused(learned, tmp_path):
    train_tokenizer(lambda: ['bird'] * 3, 100).save(str(tmp_path / 'other.json'))
    config = write_config(tmp_path, tokenizer=str(tmp_path / 'other.json'))
    pretrained = '--model.init_args.pretrained', str(learned / 'run/checkpoints/last.ckpt')
    with pytest.raises(ValueError, match="'tokenizer' must be .*/run/.* of the pre-training"):
        fit(config, *pretrained)
    assert not (tmp_path / 'run').exists()
    fit(config, *pretrained, '--data.init_args.tokenizer', str(learned / 'run/tokenizer.json'))


@pytest.mark.slow
def test_two_processes_count_every_document_once(learned, tmp_path):
    config = write_config(tmp_path)
    ended = forked(lambda: train.main([
        'fit', '--config', str(config), '--trainer.devices', '2', '--trainer.strategy', 'ddp',
        '--trainer.max_epochs', '1']), ranks=2)
    assert [process.returncode for process in ended] == [0, 0], ended
    told = [process.stdout.count('documents of 2 classes') for process in ended]
    assert told == [3, 0]
    train.main(['test', '--config', str(config),
                '--trainer.default_root_dir', str(tmp_path / 'alone'),
                '--ckpt_path', str(tmp_path / 'run/checkpoints/last.ckpt')])
    together, alone = (json.loads((tmp_path / run / 'summary.json').read_text())
                       for run in ('run', 'alone'))
    assert together['processes'] == 2 and alone['processes'] == 1
    for name in ('loss', 'accuracy', 'macro_f1', 'micro_f1'):
        assert together[name] == pytest.approx(alone[name], abs=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize('options, match', [
    (['--data.init_args.max_length', '25'], "'max_length' must be at most 24, the number"),
    (['--data.init_args.max_length', '2'], "'max_length' must be at least 3"),
    (['--data.init_args.batch_size', '0'], "'batch_size' must be at least 1"),
    (['--data.init_args.documents.init_args.path', 'nowhere'], 'nowhere/train/neg: expected a'),
    (['--model.init_args.model.init_args.num_classes', '3'],
     r"'num_classes' of the model must be 2, the number of classes of the documents \(got 3\)"),
    (['--model.init_args.model.init_args.encoder.init_args.num_tokens', '20'],
     "'num_tokens' of the encoder must be at least"),
    (['--data.init_args.tokenizer', 'nowhere.json'], "'tokenizer' cannot be read"),
])
def test_refused_before_a_folder_is_made(options, match, tmp_path, capsys):
    config = write_config(tmp_path)
    with pytest.raises((ValueError, SystemExit), match=match) as error:
        try:
            fit(config, *options)
        except SystemExit:
            raise ValueError(capsys.readouterr().err) from None
    assert error and not (tmp_path / 'run').exists()


@pytest.mark.parametrize('labels, match', [
    ({'train': [0, 0], 'dev': [1], 'test': [0]}, "got none of 'b'"),
    ({'train': [0, 1], 'dev': [], 'test': [0]}, "'documents'.*none.*dev"),
])
def test_parts_and_classes_must_not_be_empty(labels, match):
    parts = {part: [Document('text', label) for label in labels[part]] for part in PARTS}
    source = SimpleNamespace(read=lambda: SimpleNamespace(classes=('a', 'b'), parts=parts))
    with pytest.raises(ValueError, match=match):
        _ = Documents(source).collection


def test_a_batch_is_ragged():
    batch = collate([(torch.tensor([2, 7, 3]), torch.tensor(1)),
                     (torch.tensor([2, 3]), torch.tensor(0))])
    assert isinstance(batch, TokenBatch)
    assert [part.tolist() for part in batch] == [[2, 7, 3, 2, 3], [0, 3, 5], [1, 0]]
