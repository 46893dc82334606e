"""Token ids on disk, and the sequences that are cut from them."""

import multiprocessing
import os
import pickle
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from experiments.data.text import encoding
from experiments.data.text.encoding import EncodedCorpus, corpus_key, encode_corpus
from experiments.data.text.tokenizer import load_tokenizer
from tests.experiments.data.text.traceable import held_out, write_traceable

FILES = 'tokens.bin', 'sentence_ptr.bin', 'document_ptr.bin', 'counts.npy', 'layout.json'


@pytest.fixture
def traceable(tmp_path):
    documents = write_traceable(tmp_path / 'corpus')
    return documents, tmp_path / 'corpus/text.txt', load_tokenizer(tmp_path / 'corpus/vocab.txt')


@pytest.fixture
def encoded(traceable, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, 'DOCUMENTS_AT_ONCE', 7)  # so that several batches are needed
    documents, path, tokenizer = traceable
    encode_corpus(path, tokenizer, tmp_path / 'encoded')
    return documents, tokenizer, {part: EncodedCorpus(tmp_path / 'encoded' / part)
                                  for part in ('train', 'val')}


@pytest.mark.slow
def test_every_token_comes_back_in_its_part(encoded):
    documents, tokenizer, parts = encoded
    is_val = held_out(documents)
    assert any(is_val) and not all(is_val)
    for part, corpus in parts.items():
        expected = [document for document, val in zip(documents, is_val)
                    if val == (part == 'val')]
        assert corpus.num_documents == len(expected)
        assert corpus.num_sentences == sum(map(len, expected))
        for d, document in enumerate(expected):
            first, end = corpus.document_ptr[d:d + 2]
            assert end - first == len(document)
            for s, sentence in enumerate(document):
                begin, stop = corpus.sentence_ptr[first + s:first + s + 2]
                ids = corpus.tokens[begin:stop].tolist()
                assert [tokenizer.id_to_token(i) for i in ids] == [*sentence, '.']
        assert corpus.counts.sum() == len(corpus.tokens) == corpus.sentence_ptr[-1]
        assert isinstance(corpus.tokens.base, np.memmap) and corpus.tokens.dtype == np.uint16
        in_a_process = pickle.dumps(corpus)
        assert len(in_a_process) < 500 and np.array_equal(pickle.loads(in_a_process).tokens,
                                                          corpus.tokens)


@pytest.mark.slow
def test_ids_beyond_16_bits_are_kept(traceable, tmp_path):
    _, path, _ = traceable
    vocabulary = tmp_path / 'corpus/vocab.txt'
    words = vocabulary.read_text().split()
    vocabulary.write_text('\n'.join(
        [*words[:6], *(f'unused{i}' for i in range(70_000)), *words[6:]]))
    tokenizer = load_tokenizer(vocabulary)
    encode_corpus(path, tokenizer, tmp_path / 'encoded')
    corpus = EncodedCorpus(tmp_path / 'encoded/train')
    assert corpus.tokens.max() > 70_000
    assert tokenizer.id_to_token(int(corpus.tokens[0])) == 'd0s0w0'


@pytest.mark.slow
@pytest.mark.parametrize('target, short_share', [(20, 0.), (20, 0.5), (1000, 0.)])
def test_sequences_are_whole_sentences_of_one_document(encoded, target, short_share):
    corpus = encoded[2]['train']
    begin = np.array(corpus.cut(target, short_share, seed=0))
    size = np.diff(corpus.sentence_ptr[begin])
    assert set(corpus.document_ptr) <= set(begin) and (np.diff(begin) > 0).all()
    ends_document = np.isin(begin[1:], corpus.document_ptr)
    # One sentence less would not have been enough.
    last_sentence = np.diff(corpus.sentence_ptr)[begin[1:] - 1]
    assert (size - last_sentence < target).all()
    is_short = (size < target) & ~ends_document
    if short_share == 0.:
        assert not is_short.any()
    else:
        assert 0.2 < is_short.mean() < 0.6
    assert target < 1000 or len(begin) == corpus.num_documents + 1
    assert np.array_equal(begin, corpus.cut(target, short_share, seed=0))


@pytest.mark.slow
def test_an_encoding_is_whole_or_not_there(traceable, tmp_path, monkeypatch):
    _, path, tokenizer = traceable
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(encoding._PartWriter, 'close', lambda writer: 1 / 0)
        encode_corpus(path, tokenizer, tmp_path / 'encoded')
    assert {entry.name for entry in tmp_path.iterdir()} == {'.encoded.lock', 'corpus'}


@pytest.mark.slow
def test_an_encoding_that_was_killed_begins_again(traceable, encoded, tmp_path):
    _, path, tokenizer = traceable

    def killed():
        encoding._PartWriter.close = lambda writer: os._exit(9)
        encode_corpus(path, tokenizer, tmp_path / 'again')
    process = multiprocessing.get_context('fork').Process(target=killed)
    process.start()
    process.join(60)
    assert process.exitcode == 9 and not (tmp_path / 'again').exists()
    encode_corpus(path, tokenizer, tmp_path / 'again')
    for part, name in product(('train', 'val'), FILES):
        assert (tmp_path / 'again' / part / name).read_bytes() == (
            tmp_path / 'encoded' / part / name).read_bytes()


@pytest.mark.slow
def test_two_processes_encode_one_after_the_other(traceable, tmp_path, monkeypatch):
    _, path, tokenizer = traceable
    folder, encode, has_begun = tmp_path / 'encoded', encoding._encode, multiprocessing.Event()

    def slowly(*arguments):
        if not has_begun.is_set():
            has_begun.set()
            for _ in range(100):  # in which the other one would end
                time.sleep(0 if folder.exists() else .01)
        return encode(*arguments)

    monkeypatch.setattr(encoding, '_encode', slowly)

    def work(rank):
        if rank:
            has_begun.wait(60)
        encode_corpus(path, tokenizer, folder)

    processes = [multiprocessing.get_context('fork').Process(target=work, args=(rank,))
                 for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert {file.name for file in tmp_path.iterdir()} == {'.encoded.lock', 'corpus', 'encoded'}


@pytest.mark.slow
@pytest.mark.parametrize('name', FILES)
def test_an_encoding_that_was_cut_short_is_named(name, encoded, tmp_path):
    file = tmp_path / 'encoded' / 'train' / name
    os.truncate(file, file.stat().st_size - 2)
    with pytest.raises(ValueError, match=rf"'cache' is damaged .*; delete {tmp_path}/encoded, and"):
        EncodedCorpus(tmp_path / 'encoded' / 'train')


@pytest.mark.slow
def test_a_corpus_without_documents_for_both_parts(traceable, tmp_path):
    path = tmp_path / 'one.txt'
    path.write_text('One document.\nThat is all.')
    with pytest.raises(ValueError, match=r"'corpus' must have documents .* \(got 1 for train "
                                         r"and 0 for val from .*one.txt\); .*"
                                         "separate documents by blank"):
        encode_corpus(path, traceable[2], tmp_path / 'encoded')
    assert not (tmp_path / 'encoded').exists()


def test_the_key_changes_with_files_and_tokenizer(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('One.')
    keys = [corpus_key(path, 'x'), corpus_key(path, 'y')]
    path.write_text('One. Two.')
    keys.append(corpus_key(path, 'x'))
    os.utime(path, ns=(0, 0))
    keys.append(corpus_key(path, 'x'))
    assert len(set(keys)) == 4 and keys[-1] == corpus_key(path, 'x')
    (tmp_path / 'b.txt').write_text('Three.')
    assert corpus_key(tmp_path, 'x') != keys[-1]
    assert corpus_key(Path('imdb'), 'x') != corpus_key(Path('ag_news'), 'x')  # of the hub
