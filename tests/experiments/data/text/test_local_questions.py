"""Questions from docstrings, in the formats of SQuAD and SWAG."""


import numpy as np
import pytest

from experiments.data.text.choice_files import Swag
from experiments.data.text.local_questions import GAP, build_local_questions, gaps
from experiments.data.text.question_files import Squad

WORDS = 'matrix vector column index values array shape order result element'.split()


def document(number):
    """A heading that tells of words in the rest, and what it defines."""
    rng = np.random.default_rng(number)
    rest = [' '.join(['The', *rng.choice(WORDS, 9), f'number{number}.']) for _ in range(3)]
    return [f'Returns the {rest[0].split()[3]} of document {number}.', *rest,
            f'An {rest[1].split()[2]} is a thing of document {number}.']


DOCUMENTS = [('package', document(number)) for number in range(120)]


def built(tmp_path, **options):
    build_local_questions(tmp_path / 'out', DOCUMENTS, **options)
    files = [str(tmp_path / f'out/squad/{part}.json') for part in ('train', 'dev', 'test')]
    return Squad(*files).read().parts


@pytest.mark.slow
def test_answers_are_words_of_the_rest(tmp_path):
    parts = built(tmp_path)
    for part in parts.values():
        for question in part:
            (_, begin, end), = question.spans
            answer, = question.accepted
            assert question.contexts[0][begin:end] == answer and question.text.count(GAP) == 1
            whole = question.text.replace(GAP, answer)
            assert whole not in question.contexts[0]
            assert any(whole in document for _, document in DOCUMENTS)
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
        built(tmp_path, **options)


def test_too_few_documents_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'documents' must .*got 2 gaps and 0 choices for train"):
        build_local_questions(tmp_path / 'out', DOCUMENTS[:2])
    assert not (tmp_path / 'out').exists()
