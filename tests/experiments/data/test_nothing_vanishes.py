"""Whatever an input has and a reader does not know is used, refused by name, or named in the line
that says what was read."""

import json
from contextlib import suppress

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from experiments.data.graph_tables import own_graphs
from experiments.data.imagenet64 import BYTES, read_array
from experiments.data.pyg_datasets import homogeneous
from experiments.data.sequences import read_tokens
from experiments.data.text.choice_files import Swag, WikiHop
from experiments.data.text.document_files import Hyperpartisan
from experiments.data.text.glue_files import TASKS, read_rows
from experiments.data.text.package_docs import PackageDocs
from experiments.data.text.question_files import Squad, TriviaQa
from experiments.data.text.text_table import read_texts
from experiments.data.text.tokenizer import NAMES, load_tokenizer


def texts(path):
    return list(read_texts(path, label='label'))


def unlabelled(path):
    return list(read_texts(path))


def table(*lines):
    return lambda path: path.write_text('\n'.join(lines) + '\n')


def objects(**row):
    return lambda path: path.write_text(json.dumps(row) + '\n')


NODES = {'node': 'abcdef', 'label': '010101'}
EDGES = {'source': 'abc', 'target': 'bcd'}
GRAPHS = {'graph': '123456', 'label': '010101'}


def rows(columns):
    return '\n'.join(','.join(row) for row in [columns, *zip(*columns.values())]) + '\n'


def folder(nodes=NODES, edges=EDGES, graphs=None):
    def write(path):
        path.mkdir()
        for name, columns in (('nodes', nodes), ('edges', edges), ('graphs', graphs)):
            if columns is not None:
                (path / f'{name}.csv').write_text(rows(columns))
    return write


OF_GRAPHS = {'graph': '123456', 'node': 'aaaaaa'}
ALONE = {'graph': '1', 'source': 'a', 'target': 'a'}


def graphml(**others):
    def write(path):
        graph = nx.path_graph(6)
        nx.set_node_attributes(graph, {node: {'label': str(node % 2), **others.get('node', {})}
                                       for node in graph})
        nx.set_edge_attributes(graph, {edge: others.get('edge', {}) for edge in graph.edges})
        graph.graph |= others.get('graph', {})
        nx.write_graphml(graph, path)
    return write


def data(path):
    torch.save([Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([i]),
                     zzz=torch.ones(2)) for i in range(6)], path)


ANSWER = {'text': 'b', 'answer_start': 2}
ASKED = {'id': '1', 'question': 'a', 'answers': [ANSWER]}
PARAGRAPH = {'context': 'a b', 'qas': [ASKED]}
PAGE = {'Filename': 'a.txt'}
TRIVIA = {'QuestionId': '1', 'Question': 'a', 'EntityPages': [PAGE],
          'Answer': {'Value': 'b', 'Aliases': ['b'], 'NormalizedAliases': ['b']}}
HOP = {'id': '1', 'query': 'a', 'answer': 'b', 'candidates': ['b'], 'supports': ['c']}


def squad(at='', **others):
    """A file whose object at a place has other keys."""
    def of(place, row):
        return {**row, **(others if place == at else {})}
    asked = of('data.paragraphs.qas.', {**ASKED, 'answers': [
        of('data.paragraphs.qas.answers.', ANSWER)]})
    paragraph = of('data.paragraphs.', {**PARAGRAPH, 'qas': [asked]})
    return objects(**of('', {'data': [of('data.', {'paragraphs': [paragraph]})]}))


def read_squad(path):
    return Squad(str(path), str(path)).read()


def trivia(domain='Wikipedia', beside='Domain', **row):
    return objects(**{beside: 1, 'Domain': domain}, Data=[{**TRIVIA, **row}], VerifiedEval=False)


def read_trivia(path):
    for folder in ('wikipedia', 'web'):
        (path.parent / folder).mkdir()
        (path.parent / folder / 'a.txt').write_text('a b')
    return TriviaQa(str(path), str(path), str(path.parent)).read()


def hops(**others):
    return lambda path: path.write_text(json.dumps([{**HOP, **others}]))


def articles(article='', truth='', body='a', of_label='', beside=''):
    def write(path):
        for name, attributes, text in (('', article, body), ('.labels', truth, of_label)):
            path.with_suffix(f'.xml{name}').write_text(
                f'<articles><article id="1" {attributes}>{text}</article>{beside}'
                '</articles>')
    return write


def read_articles(path):
    return Hyperpartisan(str(path), f'{path}.labels').read()


def documents(path):
    with suppress(ValueError):  # they are too few
        PackageDocs(str(path.parent)).read()


# What is written, its reader, a word that the reader does not know, and whether it is then used as
# a feature, refused by name, or named in the line.
INPUTS = {
    'a column': ('a.csv', table('text,label,zzz', 'a,0,x'), texts, 'zzz', 'named'),
    'a column of tabs': ('a.tsv', table('text\tlabel\tzzz', 'a\t0\tx'), texts, 'zzz', 'named'),
    'labels, which predictions do not need': ('a.csv', table('text,label', 'a,0'), unlabelled,
                                              'label', 'named'),
    'a key of one of several lines': (
        'a.jsonl', table('{"text": "a", "label": 0}', '{"text": "a", "label": 0, "zzz": 1}'),
        texts, 'zzz', 'named'),
    'a key of documents': ('documents.json', objects(package='a', text='b', zzz=1), documents,
                           'zzz', 'named'),
    'a column of SWAG': ('a.csv', table(
        'sent1,sent2,ending0,ending1,ending2,ending3,label,zzz', 'a,b,c,d,e,f,0,x'),
        lambda path: Swag(str(path), str(path)).read(), 'zzz', 'named'),
    'a column of GLUE': ('a.tsv', table('sentence\tlabel\tzzz', 'a b\t0\tx'),
                         lambda path: list(read_rows(path, TASKS['SST-2'])), 'zzz', 'named'),
    **{f'a key of SQuAD at {place}': (
        'a.json', squad(place, zzz=1), read_squad, f'{place}zzz', 'named')
        for place in ('', 'data.', 'data.paragraphs.', 'data.paragraphs.qas.',
                      'data.paragraphs.qas.answers.')},
    'a key of SQuAD that another object has': (
        'a.json', squad('data.', text='x'), read_squad, 'data.text', 'named'),
    'a key of TriviaQA': ('a.json', trivia(beside='zzz'), read_trivia, 'zzz', 'named'),
    'a key of a question of TriviaQA': ('a.json', trivia(zzz=1), read_trivia, 'Data.zzz', 'named'),
    'a key of an answer of TriviaQA': (
        'a.json', trivia(Answer={**TRIVIA['Answer'], 'zzz': 1}), read_trivia, 'Data.Answer.zzz',
        'named'),
    'a key of a page of TriviaQA': (
        'a.json', trivia(EntityPages=[{**PAGE, 'zzz': 1}]), read_trivia, 'Data.EntityPages.zzz',
        'named'),
    'pages of the web that Wikipedia does not need': (
        'a.json', trivia(SearchResults=[PAGE]), read_trivia, 'Data.SearchResults', 'named'),
    'a key of a page of the web': (
        'a.json', trivia('Web', EntityPages=[], SearchResults=[{**PAGE, 'zzz': 1}]), read_trivia,
        'Data.SearchResults.zzz', 'named'),
    'a key of WikiHop': ('a.json', hops(zzz=1), lambda path: WikiHop(str(path), str(path)).read(),
                         'zzz', 'named'),
    'an attribute of an article': ('a.xml', articles('zzz="x"', 'hyperpartisan="true"'),
                                   read_articles, 'article.zzz', 'named'),
    'a label beside an article': (
        'a.xml', articles('hyperpartisan="true"', 'hyperpartisan="true"'), read_articles,
        'article.hyperpartisan', 'named'),
    'an attribute within an article': (
        'a.xml', articles('', 'hyperpartisan="true"', '<a href="zzz">a</a>'), read_articles,
        'a.href', 'named'),
    'an attribute of a label': ('a.xml', articles('', 'hyperpartisan="true" zzz="x"'),
                                read_articles, 'article.zzz', 'named'),
    'an element of a label': ('a.xml', articles('', 'hyperpartisan="true"', of_label='<zzz/>'),
                              read_articles, 'zzz', 'refused'),
    'a text of a label': ('a.xml', articles('', 'hyperpartisan="true"', of_label='zzz'),
                          read_articles, 'zzz', 'refused'),
    'an element beside articles': (
        'a.xml', articles('', 'hyperpartisan="true"', beside='<zzz/>'), read_articles, 'zzz',
        'refused'),
    'a text beside articles': (
        'a.xml', articles('', 'hyperpartisan="true"', beside='zzz'), read_articles, 'zzz',
        'refused'),
    'an array beside images': ('a.npz', lambda path: np.savez(
        path, data=np.ones((2, BYTES), np.uint8), zzz=np.ones(2)), read_array, 'zzz', 'named'),
    'an array beside tokens': ('a.npz', lambda path: np.savez(
        path, tokens=np.ones((2, 3), int), label=np.ones(2, int), zzz=np.ones(3)), read_tokens,
        'zzz', 'named'),
    'a column of nodes': ('a', folder({**NODES, 'zzz': '123456'}), own_graphs, 'zzz', 'used'),
    'texts of nodes': ('a', folder({**NODES, 'zzz': 'uvwxyz'}), own_graphs, 'zzz', 'refused'),
    'a column of edges': ('a', folder(edges={**EDGES, 'zzz': '123'}), own_graphs, 'zzz', 'used'),
    'labels of edges': ('a', folder(edges={**EDGES, 'label': '123'}), own_graphs, 'label', 'used'),
    'parts of edges': ('a', folder(edges={**EDGES, 'part': 'uvw'}), own_graphs, 'part', 'refused'),
    'labels of nodes beside graphs': (
        'a', folder({**OF_GRAPHS, 'label': '234567'}, ALONE, GRAPHS), own_graphs, 'label', 'used'),
    'parts of nodes beside graphs': (
        'a', folder({**OF_GRAPHS, 'part': 'uvwxyz'}, ALONE, GRAPHS), own_graphs, 'part', 'refused'),
    'ends as a column of nodes': ('a', folder({**NODES, 'target': '123456'}), own_graphs, 'target',
                                  'used'),
    'nodes as a column of edges': ('a', folder(edges={**EDGES, 'node': '123'}), own_graphs, 'node',
                                   'used'),
    'a column of graphs': ('a', folder(OF_GRAPHS, ALONE, {**GRAPHS, 'zzz': '123456'}), own_graphs,
                           'zzz', 'named'),
    'an attribute of nodes': ('a.graphml', graphml(node={'zzz': 2.}), own_graphs, 'zzz', 'used'),
    'an attribute of edges': ('a.graphml', graphml(edge={'label': 2.}), own_graphs, 'label',
                              'used'),
    'a word of tables at nodes': ('a.graphml', graphml(node={'graph': 'x'}), own_graphs, 'graph',
                                  'refused'),
    'a word of tables at edges': ('a.graphml', graphml(edge={'target': 1.}), own_graphs, 'target',
                                  'refused'),
    'an attribute of the graph': ('a.graphml', graphml(graph={'zzz': 1.}), own_graphs, 'zzz',
                                  'named'),
    'an attribute of Data': ('a.pt', data, own_graphs, 'zzz', 'named')}


@pytest.mark.parametrize('name', INPUTS)
def test_nothing_vanishes_without_a_word(name, tmp_path, capsys):
    file, write, read, word, how = INPUTS[name]
    write(tmp_path / file)
    try:
        found = read(tmp_path / file)
    except ValueError as error:
        assert how == 'refused' and word in str(error)
        return
    printed = capsys.readouterr().out
    assert how != 'refused'
    if how == 'named':
        assert repr(word) in printed.partition('left out')[2]
    else:
        assert repr(word) in printed.partition('features of')[2]
        assert any(float(graph[kind].max()) > 1 for graph in found.graphs
                   for kind in ('x', 'edge_attr') if kind in graph)


def test_what_a_heterogeneous_graph_loses_is_named():
    graph = HeteroData()
    graph['paper'].x, graph['paper'].y = torch.ones(2, 1), torch.tensor([0, 1])
    graph['paper'].year = torch.ones(2)
    graph['paper', 'cites', 'paper'].edge_index = torch.tensor([[0], [1]])
    graph['paper', 'cites', 'paper'].edge_attr = torch.ones(1, 1)
    with pytest.warns(UserWarning, match='left out.*: year of paper, edge_attr of cites'):
        homogeneous(graph)


@pytest.mark.parametrize('words, text, tokens, said', [
    (['paris', 'cafe'], 'Paris Café', ['paris', 'cafe'], 'are lower-cased, without accents'),
    (['Paris', 'café'], 'Paris café', ['Paris', 'café'], 'keep capitals and accents'),
    (['Paris', 'cafe'], 'Paris café', ['Paris', 'cafe'], 'keep capitals'),
    (['paris', 'café'], 'Paris café', ['paris', 'café'], 'keep accents')])
def test_capitals_and_accents_of_a_vocabulary_are_kept(words, text, tokens, said, tmp_path, capsys):
    path = tmp_path / 'vocab.txt'
    path.write_text('\n'.join([*NAMES, '[unused1]', *words]) + '\n')
    assert load_tokenizer(path).encode(text).tokens == ['[CLS]', *tokens, '[SEP]']
    assert capsys.readouterr().out == f'{path}: 8 tokens; texts {said}\n'
