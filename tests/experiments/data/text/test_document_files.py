"""Readers of labelled documents: what they read, how they divide it, and what they refuse."""

import json
from collections import Counter

import numpy as np
import pytest

from experiments.data.text.document_files import (
    PARTS,
    Document,
    Hyperpartisan,
    TextFolders,
    divide,
    part_of,
)
from experiments.data.text.text_table import TextTable
from tests.experiments.document_folders import write_imdb

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def write_articles(folder, bodies, labels=None, head=HEAD):
    """Both files, the labels in another order; gives the arguments of the reader."""
    labels = labels or {number: 'true' if number % 2 else 'false' for number in bodies}
    articles = [f'<article id="{number:07d}" title="SECRET">{body}</article>\n'
                for number, body in bodies.items()]
    truth = [f'<article id="{number:07d}" hyperpartisan="{label}" url="u"/>\n'
             for number, label in reversed(labels.items())]
    for name, lines in (('articles', articles), ('labels', truth)):
        (folder / f'{name}.xml').write_text(f'{head}<articles>\n{"".join(lines)}</articles>\n')
    return {name: str(folder / f'{name}.xml') for name in ('articles', 'labels')}


BODIES = {number: f'<p>Article {number} says so.</p>' for number in range(1, 41)}


def everything(collection):
    return Counter(document for part in collection.parts.values() for document in part)


def test_hyperpartisan_joins_text_and_label_by_id(tmp_path):
    bodies = {7: '<p>It &amp; he,\n&#8220;so&#8221;&amp;#160;<a href="http://x.y">there</a>.</p>'
                 '<p>End at https://t.co/1 now.</p>', 12: '<p>Zwölf</p>'}
    collection = Hyperpartisan(**write_articles(tmp_path, bodies)).read()
    assert collection.classes == ('not hyperpartisan', 'hyperpartisan')
    texts = {' '.join(text.split()): label for (text,), label in everything(collection)}
    assert texts == {'It & he, “so” there. End at now.': 1, 'Zwölf': 0}


def test_hyperpartisans_own_split_is_disjoint_and_keeps_equal_texts_together(tmp_path):
    bodies = {number: f'<p>Text {number % 150}</p>' for number in range(1, 301)}
    source = Hyperpartisan(**write_articles(tmp_path, bodies))
    collection = source.read()
    assert collection == source.read()
    texts = {part: {text for (text,), _ in collection.parts[part]} for part in PARTS}
    assert len(set().union(*texts.values())) == sum(map(len, texts.values())) == 150
    assert sum(map(len, collection.parts.values())) == 300
    assert Hyperpartisan(source.articles, source.labels, seed=1).read() != collection


def write_split(folder, split):
    (folder / 'splits.json').write_text(json.dumps(split))
    return str(folder / 'splits.json')


def test_a_leaking_split_is_said_to_leak(tmp_path):
    split = {'train': [1, 2, 3, 4], 'dev': [5, 6], 'test': [2, 3, 5, 7]}
    source = Hyperpartisan(**write_articles(tmp_path, BODIES), splits=write_split(tmp_path, split))
    with pytest.warns(match=r'share articles: 2 of the 4 ids of test are in train, 1 of the 4 ids '
                            r'of test are in dev; '):
        assert len(source.read().parts['test']) == 4


@pytest.mark.parametrize('split, match', [
    ({'train': [1], 'dev': [2], 'test': [99]}, 'got 99, which is missing'),
    ({'train': [1], 'test': [2]}, "'dev' is missing"),
    ({'train': [1], 'dev': 2, 'test': []}, "'dev' must be a list .got 2"),
    ({'train': [1.5], 'dev': [], 'test': []}, r"'train\[0\]' must .*got 1.5")])
def test_a_split_file_that_does_not_fit(split, match, tmp_path):
    source = Hyperpartisan(**write_articles(tmp_path, BODIES), splits=write_split(tmp_path, split))
    with pytest.raises(ValueError, match=match):
        source.read()


@pytest.mark.parametrize('name, content, match', [
    ('articles', '<articles>\n<article id="1">\n<p>a</b>', 'line 3: .*mismatched tag'),
    ('articles', '<articles>\n<article id="1"><p>&nbsp;</p></article></articles>',
     'line 2: .*undefined entity'),
    ('articles', '<articles>\n<article id="x">a</article></articles>', "article x: .*got 'x'"),
    ('articles', '<articles>\n<article id="1">a</article>\n<article id="01">a</article></articles>',
     'article 01 is repeated'),
    ('articles', '<articles><article id="1"><article id="2">a</article></article></articles>',
     'article 1: expected articles around'),
    ('articles', '<articles>\n\n<article id="1"> <p> </p> </article></articles>',
     'article 1:.*empty'),
    ('articles', '<articles>\n<article id="99">a</article></articles>', 'article 99.*label'),
    ('articles', '<articles><article id="1">a</article></articles>', 'label.*article 2'),
    ('articles', '<articles></articles>', 'articles.*got none'),
    ('labels', '<articles>\n<article id="1" hyperpartisan="maybe"/></articles>',
     "article 1: .*got 'maybe'"),
    ('labels', '<articles>\n<article id="1"/></articles>', 'got None')])
def test_malformed_xml_is_refused_with_its_line_or_article(name, content, match, tmp_path):
    files = write_articles(tmp_path, BODIES)
    (tmp_path / f'{name}.xml').write_text(HEAD.strip() + content)
    with pytest.raises(ValueError, match=match):
        Hyperpartisan(**files).read()


@pytest.mark.parametrize('declaration', [
    '<!DOCTYPE a SYSTEM "file:///etc/hostname">', '<!DOCTYPE a [<!ENTITY b SYSTEM "b.txt">]>',
    '<!DOCTYPE a [<!ENTITY l0 "lol">' + ''.join(
        f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(12)) + ']>'])
def test_no_declaration_of_entities_is_let_in(declaration, tmp_path):
    files = write_articles(tmp_path, {1: '<p>&l12;</p>'}, head=f'{HEAD}{declaration}\n')
    with pytest.raises(ValueError, match='xml: document type declarations'):
        Hyperpartisan(**files).read()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match='labels.xml cannot be read'):
        Hyperpartisan('articles.xml', str(tmp_path / 'labels.xml')).read()
    with pytest.raises(ValueError, match="'path' must contain the folder train"):
        TextFolders(str(tmp_path)).read()
    with pytest.raises(ValueError, match=r'train/neg: expected a folder of documents'):
        TextFolders(str(tmp_path), classes=['neg', 'pos']).read()


def write_newsgroups(folder, classes=('alt.atheism', 'sci.space'), num=30):
    for part in ('train', 'test'):
        for name in classes:
            (folder / f'20news-bydate-{part}' / name).mkdir(parents=True)
            for number in range(num):
                (folder / f'20news-bydate-{part}' / name / f'{number}').write_bytes(
                    f'From: é@{name}\nSubject: x\n\n{part} {name} {number}\n\nbye'.encode(
                        'latin-1'))
    return folder


def newsgroups(folder, strip_headers=True):
    return TextFolders(str(folder), '20news-bydate-train', '20news-bydate-test',
                       encoding='latin-1', strip_headers=strip_headers)


def test_newsgroups_with_and_without_headers(tmp_path, capsys):
    write_newsgroups(tmp_path)
    (tmp_path / '20news-bydate-train/.DS_Store').touch()
    (tmp_path / '20news-bydate-test/sci.space/30').write_text('From: é@a\nSubject: b\n', 'latin-1')
    bare = newsgroups(tmp_path).read()
    assert '20news-bydate-test: skipped 1 messages' in capsys.readouterr().out
    (tmp_path / '20news-bydate-test/sci.space/30').unlink()
    full = newsgroups(tmp_path, False).read()
    assert bare.classes == full.classes == ('alt.atheism', 'sci.space')
    assert sorted(bare.parts['test']) == sorted(
        Document((f'test {name} {number}\n\nbye',), label)
        for label, name in enumerate(bare.classes) for number in range(30))
    assert all(text.startswith('From: é@') for (text,), _ in full.parts['dev'])
    for collection in (bare, full):
        sizes = [len(collection.parts[part]) for part in PARTS]
        assert sizes[0] + sizes[1] == sizes[2] == 60 and 0 < sizes[1] < 20
        assert all('train' in text for part in ('train', 'dev')
                   for (text,), _ in collection.parts[part])


def test_newsgroups_that_are_refused(tmp_path):
    write_newsgroups(tmp_path)
    stray = tmp_path / '20news-bydate-train/stray'
    stray.touch()
    with pytest.raises(ValueError, match='stray: expected only folders, one for each class'):
        newsgroups(tmp_path).read()
    stray.unlink()
    (tmp_path / '20news-bydate-train/sci.space/3').write_text(' \n')
    with pytest.raises(ValueError, match='sci.space/3:.*empty document'):
        newsgroups(tmp_path).read()
    (tmp_path / '20news-bydate-test/zzz').mkdir()
    with pytest.raises(ValueError, match='zzz: expected only classes of .*train '):
        newsgroups(tmp_path).read()


def test_imdb(tmp_path):
    write_imdb(tmp_path, num_train=50, num_test=4)
    (tmp_path / 'train/unsup').mkdir()  # which has no labels
    (tmp_path / 'test/pos/9_9.txt').write_text('Great!<br /><br />“Fine.”')
    collection = TextFolders(str(tmp_path), classes=['neg', 'pos']).read()
    assert collection.classes == ('neg', 'pos')
    assert Document(('Great!  “Fine.”',), 1) in collection.parts['test']
    sizes = [len(collection.parts[part]) for part in PARTS]
    assert sizes[0] + sizes[1] == 100 and 3 <= sizes[1] <= 20 and sizes[2] == 9
    for (text,), label in collection.parts['train']:
        assert text.split()[0] in (('dull', 'bad', 'poor'), ('fine', 'good', 'great'))[label]


def write_reviews(path, lengths):
    lines = [json.dumps({'reviewText': f'r{number} ' + 'word ' * (length - 1),
                         'overall': float(number % 5 + 1), 'asin': 'x'})
             for number, length in enumerate(lengths)]
    path.write_text('\n'.join(lines) + '\n')
    return str(path)


def reviews(path, *sampled):
    return TextTable(*[path] * 3, ['reviewText'], 'overall', [*'12345'], 5, *sampled)


def test_a_sample_of_reviews_is_uniform_and_repeats(tmp_path):
    path = write_reviews(tmp_path / 'books.json', [6] * 60 + [5] * 10)
    drawn = [Counter(reviews(path, 20, seed).read().parts['train']) for seed in range(60)]
    assert drawn[3] == Counter(reviews(path, 20, 3).read().parts['train'])
    assert all(sample.total() == 20 for sample in drawn)
    count = np.array(list(sum(drawn, Counter()).values()))
    # Each of 60 is drawn 20 times on average, with a standard deviation of 3.7.
    assert len(count) == 60 and 6 <= count.min() and count.max() <= 34
    with pytest.raises(ValueError, match="'num_sampled' must be at most 60, the number of rows"):
        reviews(path, 61).read()


@pytest.mark.parametrize('line, match', [
    ('{"overall": 1.0', 'not JSON'), ('3', 'JSON object .got int'), ('[' * 100_000, 'not JSON'),
    ('{"overall": 1.0}', "'reviewText' .got overall"),
    ('{"reviewText": "a b c d e f", "overall": 6}', "got '6'"),
    ('{"reviewText": null, "overall": 1}', "'reviewText' .got None"),
    ('{"reviewText": "a", "overall": 4.5}', 'got 4.5'),
    ('{"reviewText": "a b c d e f", "overall": true}', "got 'True'"),
    (b'{"reviewText": "\xe9", "overall": 4}', 'not UTF-8')])
def test_malformed_lines_of_reviews(line, match, tmp_path):
    path = write_reviews(tmp_path / 'books.json', [6])
    with open(path, 'ab') as file:
        file.write((line if isinstance(line, bytes) else line.encode()) + b'\n')
    with pytest.raises(ValueError, match=match):
        reviews(path).read()


@pytest.mark.slow
def test_shares_of_the_parts():
    count = Counter(part_of(f'{number}', seed=3) for number in range(10_000))
    # Standard deviations are 40 and 30.
    assert abs(count['train'] - 8000) < 200 and abs(count['dev'] - 1000) < 150
    assert sum(count.values()) == 10_000 and set(count) == set(PARTS)
    assert part_of('A  b\nc') == part_of('a b c')
    assert {part_of(f'{number}', shares=(0.9, 0.1)) for number in range(200)} == {'train', 'dev'}
    assert list(divide([Document(('a',), 0)], 0)) == list(PARTS)


def test_numbers_must_be_positive():
    with pytest.raises(ValueError, match="'longer_than' must be at least 0 .got -1"):
        TextTable('x', longer_than=-1)
    with pytest.raises(ValueError, match="'num_sampled' must be at least 1 .got 0"):
        TextTable('x', num_sampled=0)
