"""All measurements of a graph on one page."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from analysis.commands import COMMANDS
from analysis.report import sections
from graphattn.patterns import Full

main = COMMANDS['report']

TITLES = ['Size', 'Spectrum', 'Expansion', 'Mixing', 'Hamiltonian path', 'Universality',
          'Diffusion']


class Page:
    """Elements of a page, which must be well-formed: their attributes and texts."""

    def __init__(self, content):
        content = re.sub('<(meta|img)([^>]*)>', r'<\1\2/>', content.partition('<html')[2])
        self.root = ElementTree.fromstring(f'<html{content}')

    def texts(self, tag):
        return [element.text for element in self.root.iter(tag) if (element.text or '').strip()]

    def attributes(self, tag, name):
        return [element.get(name) for element in self.root.iter(tag) if name in element.keys()]


@pytest.mark.slow
def test_a_page_holds_every_question_and_nothing_from_elsewhere(tmp_path):
    (tmp_path / 'a.csv').write_text('<b>,"<script>"\n"<script>",Ann\n')
    main(['--graph', str(tmp_path / 'a.csv'), '--out', str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {'a.csv', 'report.html'}
    page = Page((tmp_path / 'report.html').read_text())
    assert page.texts('h1') == ['a.csv'] and page.texts('h2') == ['Network', *TITLES]
    pictures = page.attributes('img', 'src')
    assert len(pictures) == 1 + len(TITLES)
    said, lead, *_ = page.texts('p')
    assert said.startswith('a.csv: list of edges') and 'pass --edges undirected' in said
    assert lead.startswith('3 tokens and 2 edges') and lead.endswith(
        'A path along the edges visits every token once.')
    assert ('at most 2 edges apart, followed in both directions; its spectral gap is 1. A random '
            'walk') in lead
    assert 'Number of queries whose receptive fields were followed.' in page.texts('td')
    assert all(source.startswith('data:image/png;base64,') for source in pictures)
    assert [link[1:] for link in page.attributes('a', 'href')] == page.attributes('section', 'id')
    for name in ('density', 'lambda 2', 'diameter', 'mixing time', 'exists', 'assumption 1',
                 'field at one'):
        assert name in page.texts('th')
    assert 'a.csv, path: <b>; <script>; Ann' in page.texts('p')  # names are no elements
    assert not page.texts('script')


@pytest.mark.slow
@pytest.mark.usefixtures('pictures_of_no_work')
def test_segments_are_rows(tmp_path):
    np.save(tmp_path / 'a.npy', np.stack([np.eye(6), np.ones((6, 6))]))
    main(['--graph', str(tmp_path / 'a.npy'), '--out', str(tmp_path / 'a.html')])
    page = Page((tmp_path / 'a.html').read_text())
    assert [text for text in page.texts('th') if text in ('0', '1', 'all')] == [
        '0', '1', 'all'] * len(TITLES)


def test_what_cannot_be_asked_says_why():
    found = {section.title: section for section in sections({'a': [Full().build(4, 6)]})}
    assert list(found) == TITLES
    assert found['Spectrum'].results and found['Size'].refusal is None
    for title in ('Expansion', 'Mixing', 'Hamiltonian path', 'Universality', 'Diffusion'):
        assert 'keys' in found[title].refusal and not found[title].results
