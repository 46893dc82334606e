"""Tasks made from documentation: in GLUE's formats, true to their labels, without leaks."""


import numpy as np
import pytest

from experiments.data.text.corpus import is_held_out
from experiments.data.text.glue_files import TASKS, read_rows
from experiments.data.text.local_glue import build_local_glue

WORDS = ('layer returns input value array index model shape number error file name given each '
         'other first last item type list call data loss step').split()


def make_documents(size=400):
    rng = np.random.default_rng(0)
    documents = []
    for number in range(size):
        sentences = [f'The {" ".join(rng.choice(WORDS, 12))} number {number} is {line}.'
                     for line in range(10)]
        documents.append((('python', 'torch', 'numpy')[number % 3], sentences))
    return documents


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp('local') / 'glue'
    build_local_glue(out, iter(make_documents()), num_train=200, num_dev=20, seed=1)
    return out


@pytest.fixture(scope='module')
def where():
    """Package, document, place of every sentence, and whether the document is for development."""
    return {sentence: (package, number, line, is_held_out(document))
            for number, (package, document) in enumerate(make_documents())
            for line, sentence in enumerate(document)}


def rows_of(folder, task, part):
    return list(read_rows(folder / task / f'{part}.tsv', TASKS[task]))


@pytest.mark.parametrize('task', ['CoLA', 'RTE', 'SST-2'])
def test_rows_read_as_glues_and_labels_are_balanced(task, built):
    for part, size in (('train', 200), ('dev', 20)):
        rows = rows_of(built, task, part)
        assert len(rows) == size
        assert sum(row.label for row in rows) == size / 2
        labels = [row.label for row in rows]
        assert labels != sorted(labels) and labels[::2].count(0) not in (0, size // 2)


@pytest.mark.slow
def test_unacceptable_sentences_have_their_words_in_another_order(built, where):
    words_of = {tuple(sorted(sentence.split())): sentence for sentence in where}
    for part in ('train', 'dev'):
        originals = []
        for row in rows_of(built, 'CoLA', part):
            sentence, = row.text
            original = words_of[tuple(sorted(sentence.split()))]
            assert (sentence == original) == (row.label == 1)
            assert where[original][3] == (part == 'dev')
            moved = [a != b for a, b in zip(sentence.split(), original.split())]
            assert sum(moved) <= 4 and not moved[0] and not moved[-1]
            originals.append(original)
        assert len(set(originals)) == len(originals)


def test_second_sentences_follow_or_are_from_another_document(built, where):
    for part in ('train', 'dev'):
        for row in rows_of(built, 'RTE', part):
            (_, first, line, held_out), (_, second, other_line, also) = map(where.get, row.text)
            follows = first == second and other_line == line + 1
            assert follows == (row.label == TASKS['RTE'].classes.index('entailment'))
            assert follows or first != second
            assert held_out == also == (part == 'dev')


@pytest.mark.slow
@pytest.mark.parametrize('arguments, match', [
    ({'num_train': 0}, "'num_train' must be at least 1"),
    ({'num_dev': 10_000}, "'num_train' and 'num_dev' .*got 10000 for"),
])
def test_too_few_documents_leave_nothing_behind(arguments, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        build_local_glue(tmp_path / 'out', make_documents(),
                         **{'num_train': 10, 'num_dev': 5, **arguments})
    assert list(tmp_path.iterdir()) == []
