"""Documentation of packages as a task: classes, parts, and that no document prints its label."""


import re

import pytest

from experiments.data.text.document_files import PARTS
from experiments.data.text.package_docs import MASK, PackageDocs, build_package_docs

SUBJECT = {'torch': 'gradients', 'sklearn': 'clusters', '_pytest': 'fixtures', 'pip': 'wheels'}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    def documents():
        for number in range(60):
            for place, (package, subject) in enumerate(SUBJECT.items()):
                if number % (place + 1) == 0:
                    yield package, [f'PyTorch, {package}s and scikit-learn do {subject} in pytest.',
                                    f'Number {number} is {"very " * number}long in pipelines.']
        yield 'torch-2.0.dist-info', ['A licence.'] * 30

    out = tmp_path_factory.mktemp('docs') / 'package_docs'
    build_package_docs(out, documents())
    return out


@pytest.mark.slow
def test_packages_with_enough_documents_are_classes(folder):
    read = PackageDocs(str(folder), min_words=3, min_documents=20).read()
    assert read.classes == ('_pytest', 'sklearn', 'torch')
    assert sum(len(read.parts[part]) for part in PARTS) == 60 + 30 + 20
    assert PackageDocs(str(folder), 3, 1).read().classes == ('_pytest', 'pip', 'sklearn', 'torch')
    assert PackageDocs(str(folder), 3, 1, num_classes=2).read().classes == ('sklearn', 'torch')
    long = PackageDocs(str(folder), 40, 1).read()
    assert all(len(text.split()) >= 40 for part in PARTS for (text,), _ in long.parts[part])
    assert PackageDocs(str(folder), 3, 20).read() == read
    assert PackageDocs(str(folder), 3, 20, seed=1).read() != read


@pytest.mark.slow
def test_no_document_prints_the_name_of_a_class(folder):
    read = PackageDocs(str(folder), 3, 1).read()
    for part in PARTS:
        for (text,), label in read.parts[part]:
            assert not re.search('torch|sklearn|scikit|pytest|pips?\\b', text, re.IGNORECASE)
            subject = SUBJECT[read.classes[label]]
            assert text.startswith(f'{MASK}, {MASK} and {MASK} do {subject} in {MASK}. Number')
            assert text.endswith('long in pipelines.')


@pytest.mark.parametrize('options, match', [
    (dict(num_classes=4), r"'num_classes' must be at most 3, .* packages with 20 .*\(got 4\)"),
    (dict(min_documents=40), r'at most 1, .*\(got none, which needs 2\)'),
])
def test_too_few_packages(options, match, folder):
    with pytest.raises(ValueError, match=match):
        PackageDocs(str(folder), **{'min_words': 3, 'min_documents': 20, **options}).read()


@pytest.mark.parametrize('name', ['min_words', 'min_documents', 'num_classes'])
def test_numbers_must_not_be_too_small(name):
    with pytest.raises(ValueError, match=f"'{name}' must be at least"):
        PackageDocs(**{name: 0})
