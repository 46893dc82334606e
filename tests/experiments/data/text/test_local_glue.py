"""Tasks and questions made from documentation: in the formats of GLUE, SQuAD and SWAG, true to
their labels, without leaks."""


import numpy as np
import pytest

from experiments.data.text.choice_files import Swag
from experiments.data.text.corpus import is_held_out
from experiments.data.text.glue_files import TASKS, read_rows
from experiments.data.text.local_glue import build_local_glue
from experiments.data.text.local_questions import GAP, build_local_questions, gaps
from experiments.data.text.question_files import Squad

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
            sentence, = row.texts
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
            (_, first, line, held_out), (_, second, other_line, also) = map(where.get, row.texts)
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


NOUNS = 'matrix vector column index values array shape order result element'.split()


def document(number):
    """A heading that tells of words in the rest, and what it defines."""
    rng = np.random.default_rng(number)
    rest = [' '.join(['The', *rng.choice(NOUNS, 9), f'number{number}.']) for _ in range(3)]
    return [f'Returns the {rest[0].split()[3]} of document {number}.', *rest,
            f'An {rest[1].split()[2]} is a thing of document {number}.']


DOCUMENTS = [('package', document(number)) for number in range(120)]


def built_questions(tmp_path, **options):
    build_local_questions(tmp_path / 'out', DOCUMENTS, **options)
    files = [str(tmp_path / f'out/squad/{part}.json') for part in ('train', 'dev', 'test')]
    return Squad(*files).read().parts


@pytest.mark.slow
def test_answers_are_words_of_the_rest(tmp_path):
    parts = built_questions(tmp_path)
    for part in parts.values():
        for question in part:
            (_, begin, end), = question.spans
            answer, = question.accepted
            assert question.contexts[0][begin:end] == answer and question.text.count(GAP) == 1
            whole = question.text.replace(GAP, answer)
            assert whole not in question.contexts[0]
            assert any(whole in document for _, document in DOCUMENTS)
    texts = [{context for question in part for context in question.contexts}
             for part in parts.values()]
    assert not texts[0] & texts[2]
    swag = Swag(*(str(tmp_path / f'out/swag/{name}.csv') for name in ('train', 'val', 'test')))
    for part in swag.read().parts.values():
        for row in part:
            assert any((row.text, row.choices[row.label]) in zip(document, document[1:])
                       for _, document in DOCUMENTS)
            assert len({*row.choices}) == 4


def test_short_documents_give_no_questions():
    assert gaps(['Returns the index.', 'The index is one.'], 0., np.random.default_rng(0)) == []


@pytest.mark.parametrize('options, match', [
    (dict(share_without=1.), "'share_without' must be in"), (dict(seed=-1), "'seed' must be at")])
def test_bad_arguments(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        built_questions(tmp_path, **options)


def test_too_few_documents_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'documents' must .*got 2 gaps and 0 choices for train"):
        build_local_questions(tmp_path / 'out', DOCUMENTS[:2])
    assert not (tmp_path / 'out').exists()
