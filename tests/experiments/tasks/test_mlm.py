"""Sequences, pairs, masks and the order of batches of the pre-training task."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from experiments.tasks import MaskedLanguage
from experiments.tasks.batch_stream import BatchStream
from graphattn.models import Encoder, MaskedLanguageModel
from graphattn.patterns import Full
from graphattn.sources import PatternSource
from tests.experiments.data.text.traceable import held_out, write_traceable
from tests.experiments.tasks.trainers import trainer

MAX_LENGTH = 32


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp('corpus')
    return folder, write_traceable(folder)


def model(num_tokens=10_000, max_length=MAX_LENGTH):
    encoder = Encoder(PatternSource(Full()), num_tokens=num_tokens, max_length=max_length,
                      channels=8, heads=2, num_layers=1, num_segments=2)
    return MaskedLanguageModel(encoder)


def of_a_run(folder, rank=0, processes=1, model=None):
    made = trainer(rank, processes)
    made.default_root_dir = str(folder / 'run')
    made.lightning_module = SimpleNamespace(model=model, pretrained_tokenizer=None)
    made.strategy = SimpleNamespace(root_device=torch.device('cpu'))
    return made


def prepared(made, rank=0, processes=1, **options):
    folder, _ = made
    task = MaskedLanguage(**{
        'corpus': str(folder / 'text.txt'), 'tokenizer': str(folder / 'vocab.txt'),
        'max_length': MAX_LENGTH, 'batch_size': 4, 'cache': str(folder / 'cache'), **options})
    task.trainer = of_a_run(folder, rank, processes, model())
    task.prepare_data()
    task.setup('fit')
    return task


def sequences(loader):
    """Each sequence as (ids with what was hidden put back, segments, label)."""
    for batch in loader:
        tokens = batch.tokens.clone()
        tokens[batch.selected] = batch.target
        for i, (begin, end) in enumerate(zip(batch.ptr, batch.ptr[1:])):
            label = int(batch.label[i]) if batch.label.numel() else None
            yield tokens[begin:end].tolist(), batch.segments[begin:end].tolist(), label


def words_of(folder):
    return (folder / 'vocab.txt').read_text().split()


def place(word):
    """(document, sentence, word) of a traceable word; the full stops have none."""
    d, s, w = word[1:].replace('s', ' ').replace('w', ' ').split()
    return int(d), int(s), int(w)


@pytest.mark.slow
def test_pairs_are_what_their_label_says(corpus):
    folder, documents = corpus
    words, labels = words_of(folder), Counter()
    is_val = held_out(documents)
    for tokens, segments, label in sequences(prepared(corpus).train_dataloader()):
        text = [words[token] for token in tokens]
        assert text[0] == '[CLS]' and text[-1] == '[SEP]' and len(text) <= MAX_LENGTH
        middle = text.index('[SEP]')
        assert text.count('[SEP]') == 2
        assert segments == [0] * (middle + 1) + [1] * (len(text) - middle - 1)
        a, b = ([place(word) for word in part if word != '.']
                for part in (text[1:middle], text[middle + 1:-1]))
        if not a or not b:
            continue  # nothing but the full stop of a sentence was left
        assert len({d for d, _, _ in a}) == len({d for d, _, _ in b}) == 1
        assert not is_val[a[0][0]] and not is_val[b[0][0]]
        assert a == sorted(a) and b == sorted(b)
        same_document = a[0][0] == b[0][0]
        assert same_document == (label == 0)
        if same_document:
            assert b[0][1] > a[-1][1]
        labels[label] += 1
    assert 0.4 < labels[1] / labels.total() < 0.75  # lone sentences have only random ones


@pytest.mark.slow
def test_every_token_of_the_corpus_is_seen_where_nothing_is_too_long(corpus):
    folder, documents = corpus
    task = prepared(corpus, next_sentence=False, max_length=MAX_LENGTH, short_share=0.)
    task.sets['train'].room = 10**6  # then no sequence is shortened
    words = words_of(folder)
    seen = Counter(words[token] for tokens, _, _ in sequences(task.train_dataloader())
                   for token in tokens)
    expected = Counter(word for document, val in zip(documents, held_out(documents)) if not val
                       for sentence in document for word in [*sentence, '.'])
    del seen['[CLS]'], seen['[SEP]']
    assert seen == expected


@pytest.mark.slow
def test_hidden_tokens_follow_the_rule(corpus):
    folder, _ = corpus
    words = words_of(folder)
    task = prepared(corpus)
    progress = task.trainer.fit_loop.epoch_loop.batch_progress.total
    mask, fate, num_tokens = words.index('[MASK]'), Counter(), 0
    for epoch in range(8):
        progress.processed = epoch * len(task.train_dataloader())
        for batch in task.train_dataloader():
            now = batch.tokens[batch.selected]
            fate['masked'] += int((now == mask).sum())
            fate['kept'] += int((now == batch.target).sum())
            fate['all'] += len(now)
            num_tokens += len(batch.tokens)
            assert not (batch.target < 5).any()  # special tokens are not to be predicted
            assert not ((now < 5) & (now != mask)).any()
            others = torch.ones_like(batch.tokens, dtype=torch.bool)
            others[batch.selected] = False
            assert not (batch.tokens[others] == mask).any()
            assert (batch.selected.diff() > 0).all()
            per_sequence = torch.bincount(
                torch.searchsorted(batch.ptr, batch.selected, right=True) - 1,
                minlength=len(batch.ptr) - 1)
            assert (per_sequence >= 1).all()
            assert ((per_sequence - 0.15 * batch.ptr.diff()).abs() <= 1).all()
    error = 4 * (0.25 / fate['all'])**0.5
    assert abs(fate['masked'] / fate['all'] - 0.8) < error
    assert abs(fate['kept'] / fate['all'] - 0.1) < error  # a random word is rarely the same
    assert abs(fate['all'] / num_tokens - 0.15) < 0.01


def test_masks_change_with_the_epoch_and_stay_in_evaluation(corpus):
    task = prepared(corpus)
    first, again, other = (task.sets['train'][[(epoch, 3)]] for epoch in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first.selected, other.selected)
    batches = [[batch.tokens for batch in loader] for loader in
               (task.val_dataloader(), task.val_dataloader(), task.test_dataloader())]
    assert all(map(torch.equal, batches[0], batches[1]))
    assert not all(a.equal(b) for a, b in zip(batches[0], batches[2]))


def stream(num_examples, batch_size, processes=1, rank=0, done=0, shuffle=True):
    return BatchStream(num_examples, batch_size, processes, rank, seed=5, shuffle=shuffle,
                       batches_done=lambda: done)


@pytest.mark.parametrize('num_examples', [24, 25, 26, 31])
def test_every_example_once_an_epoch_over_all_processes(num_examples):
    for epoch in range(2):
        streams = [stream(num_examples, 2, 3, rank) for rank in range(3)]
        for one in streams:
            one.batches_done = lambda: epoch * len(streams[0])  # noqa: B023
        batches = [list(one) for one in streams]
        assert {len(own) for own in batches} == {len(streams[0])}
        assert all(batch for own in batches for batch in own)
        keys = [key for own in batches for batch in own for key in batch]
        assert {e for e, _ in keys} == {epoch}
        indices = [index for _, index in keys]
        assert len(set(indices)) == len(indices)
        left = num_examples % 6
        assert num_examples - len(indices) == (left if left < 3 else 0)


@pytest.mark.parametrize('option, value, match', [
    ('batch_size', 0, 'must'), ('max_length', 7, 'must be at least 8'),
    ('short_share', 1.5, 'must'),
    ('masked_share', 0., 'must .*got 0.0'), ('masked_share', float('nan'), 'must .*got nan'),
    ('num_workers', -1, 'must'), ('max_length', 33, 'must be at most 32'),
    ('tokenizer', 'nowhere.json', 'cannot be read: nowhere.json')])
def test_bad_options_are_told_first(corpus, option, value, match):
    with pytest.raises(ValueError, match=f"'{option}' {match}"):
        prepared(corpus, **{option: value})


def test_a_vocabulary_that_the_model_lacks(corpus, tmp_path):
    folder, _ = corpus
    task = MaskedLanguage(str(folder / 'text.txt'), tokenizer=str(folder / 'vocab.txt'),
                          max_length=16, cache=str(tmp_path / 'cache'))
    task.trainer = of_a_run(tmp_path, model=model(num_tokens=500))
    with pytest.raises(ValueError, match="'num_tokens' of the encoder must be at least"):
        task.prepare_data()
    assert not (tmp_path / 'cache').exists()


@pytest.mark.slow
def test_pairs_need_two_documents(tmp_path):
    write_traceable(tmp_path)
    documents = (tmp_path / 'text.txt').read_text().split('\n\n')
    is_val = held_out([[line[:-1].split() for line in document.splitlines()]
                       for document in documents])
    few = [documents[is_val.index(True)], *(d for d, val in zip(documents, is_val) if not val)]
    (tmp_path / 'text.txt').write_text('\n\n'.join(few))
    with pytest.raises(ValueError, match='got one for val'):
        prepared((tmp_path, few))
