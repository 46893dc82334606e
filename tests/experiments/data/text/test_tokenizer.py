"""Tokenizers that are trained, and that come from a file."""

import signal
import socket

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from experiments.data.text.tokenizer import (
    NAMES,
    check_vocabulary,
    load_tokenizer,
    special_tokens,
    train_byte_pairs,
    train_tokenizer,
)


def texts():
    return ['The cat sat on the mat.', 'The cats sat on mats, Élodie!'] * 20


def test_a_trained_tokenizer_is_berts(tmp_path):
    tokenizer = train_tokenizer(texts, 60)
    assert tokenizer.get_vocab_size() <= 60
    assert special_tokens(tokenizer) == (0, 1, 2, 3, 4)
    assert tokenizer.encode('THE CAT', add_special_tokens=False).ids == tokenizer.encode(
        'the cat', add_special_tokens=False).ids
    assert tokenizer.encode('Élodie', add_special_tokens=False).ids == tokenizer.encode(
        'elodie', add_special_tokens=False).ids
    pair = tokenizer.encode('the cat', 'sat.')
    assert pair.tokens[0] == '[CLS]' and pair.tokens.count('[SEP]') == 2
    first_end = pair.tokens.index('[SEP]')
    assert pair.type_ids == [0] * (first_end + 1) + [1] * (len(pair.ids) - first_end - 1)
    assert tokenizer.decode(tokenizer.encode('the cats').ids) == 'the cats'


def test_the_ids_of_a_pre_training_must_stand_for_the_same_tokens(tmp_path):
    path = tmp_path / 'tokenizer.json'
    tokenizer, other = train_tokenizer(texts, 60), train_tokenizer(lambda: ['bird'] * 20, 60)
    check_vocabulary(other, 2**31, None)
    check_vocabulary(other, 2**31, path)  # which is not there
    tokenizer.save(str(path))
    check_vocabulary(tokenizer, 2**31, path)
    with pytest.raises(ValueError, match="'tokenizer' must.*json.*got a tokenizer with other ids"):
        check_vocabulary(other, 2**31, path)


@pytest.mark.slow
@pytest.mark.parametrize('train', [train_tokenizer, train_byte_pairs])
def test_an_interrupt_is_not_lost(train):
    rng = np.random.default_rng(0)
    some = [' '.join(map(str, rng.integers(2**40, size=200))) for _ in range(200)]
    once = iter([0.] * (train is train_tokenizer))  # the pass that counts letters

    def texts():
        yield from some
        signal.setitimer(signal.ITIMER_REAL, next(once, .05))  # in the midst of the training

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(texts, 3000)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize('train, size, least', [(train_tokenizer, 10, 35),
                                                (train_byte_pairs, 200, 261)])
def test_no_room_for_the_letters(train, size, least):
    with pytest.raises(ValueError, match=f"'vocab_size' must be at least {least}, .*got {size}"):
        train(texts, size)


def test_a_vocabulary_file_has_its_own_ids(tmp_path):
    path = tmp_path / 'vocab.txt'
    path.write_text('\n'.join(['the', '[MASK]', '[SEP]', '[CLS]', 'cat', '##s', '[UNK]', '[PAD]']))
    tokenizer = load_tokenizer(path)
    assert special_tokens(tokenizer) == (7, 6, 3, 2, 1)
    assert tokenizer.encode('The cats purr').ids == [3, 0, 4, 5, 6, 2]


def test_a_folder_is_read_as_hugging_face_does(tmp_path, monkeypatch):
    tokenizer = train_tokenizer(texts, 60)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).encode('the cats', 'sat').tokens == tokenizer.encode(
        'the cats', 'sat').tokens
    monkeypatch.setattr(socket.socket, 'connect', lambda *_: 1 / 0)
    with pytest.raises(ValueError, match="'tokenizer' cannot be read: .*/nowhere .* name of a "):
        load_tokenizer(tmp_path / 'nowhere')


@pytest.mark.parametrize('name, content, match', [
    ('vocab.txt', None, 'cannot be read'),
    ('tokenizer.json', None, 'cannot be read'),
    ('tokenizer.json', '{}', 'cannot be read'),
    ('vocab.txt', '\n'.join([*NAMES, 'a', 'a']), "cannot be read: .*'a' is listed twice"),
    ('vocab.txt', '\n'.join([*NAMES[:3], 'a']), r'lacks \[SEP\], \[MASK\]'),
])
def test_a_file_that_will_not_do(name, content, match, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"'tokenizer' .*{match}"):
        load_tokenizer(tmp_path / name)


@pytest.mark.parametrize('text', ['The Cat  sat.', 'naïve Größe 東京 \U0001f600', ' a\tb\nc ',
                                  'X' * 300])
def test_byte_pairs_lose_nothing(text, tmp_path):
    tokenizer = train_byte_pairs(texts, 300)
    tokenizer.save(str(tmp_path / 'tokenizer.json'))
    loaded = load_tokenizer(tmp_path / 'tokenizer.json')
    ids = loaded.encode(text, add_special_tokens=False).ids
    assert loaded.decode(ids) == text and special_tokens(loaded) == (1, 3, 0, 2, 4)
    assert loaded.encode(text).ids == [0, *ids, 2]
    assert train_byte_pairs(texts, 300).get_vocab() == tokenizer.get_vocab()
