"""The bar of a logistic regression on word counts."""

from experiments.data.text.document_files import PARTS, Collection, Document
from experiments.papers.diffuser.bag_of_words import bag_of_words


def test_the_bar_is_measured():
    documents = [Document(f'{word} number {number}', label)
                 for number in range(10) for label, word in enumerate(('graph', 'kernel'))]
    scores = bag_of_words(Collection(('graphs', 'kernels'), dict.fromkeys(PARTS, documents)))
    assert set(scores) == {'dev', 'test'} and scores['test'] == {'accuracy': 1., 'macro_f1': 1.}
