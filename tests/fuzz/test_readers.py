"""Damaged and hostile files: every reader gives a result, or an error that names the file."""

import gzip
import io
import json
import math
import resource
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import numpy as np
import psutil
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from pyarrow.parquet import write_table as write_parquet

from analysis.graph_files import read_graph
from analysis.runs import sampled_graphs
from experiments.data.byte_text import read_pairs
from experiments.data.image_files import ImageFiles, read_png
from experiments.data.imagenet64 import ImageNet64
from experiments.data.listops import read_listops
from experiments.data.text.choice_files import Swag, WikiHop
from experiments.data.text.corpus import read_documents
from experiments.data.text.document_files import Hyperpartisan
from experiments.data.text.encoding import EncodedCorpus, encode_corpus
from experiments.data.text.glue_files import TASKS, read_rows, read_test_rows
from experiments.data.text.package_docs import PackageDocs
from experiments.data.text.question_files import Squad, TriviaQa
from experiments.data.text.text_table import TextTable
from experiments.data.text.tokenizer import load_tokenizer, train_tokenizer
from experiments.data.token_arrays import TokenArrays
from experiments.runs.checkpoints import write_checkpoint
from experiments.runs.load_run import load_run
from experiments.runs.summary import read_summary, write_summary
from graphattn.graphs.pair_layout import FreeLayout
from graphattn.hugging_face import Profile, attach, load_attached, profile, save_attached
from graphattn.models import Encoder, SequenceClassifier
from graphattn.patterns import Mask, SlidingWindow, load_masks, save_masks
from graphattn.sources import BlockModelSource, LearnedMaskSource
from tests.fuzz.budget import cases

MAX_BYTES = 2**30  # that a reader may take for a file of a few kilobytes
SECONDS = 60
TEXT = ['The first sentence of a document is here.', 'It has another one, e.g. this.',
        'Is it the last? No, there is more to come.']


class Reader(NamedTuple):
    """A writer of a valid file into a folder, and its reader."""

    file: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]


def matrix_file(form: str, is_packed: bool) -> Reader:
    matrix = SlidingWindow(2).build(12).to_scipy()
    return Reader('graph.npz', lambda folder: sp.save_npz(
        folder / 'graph.npz', matrix.asformat(form), compressed=is_packed), graph)


def text_file(name: str, content: str | bytes, read: Callable[[Path], object]) -> Reader:
    content = content.encode() if isinstance(content, str) else content
    packed = gzip.compress(content, mtime=0) if name.endswith('.gz') else content
    return Reader(name, lambda folder: (folder / name).write_bytes(packed),
                  lambda folder: read(folder / name))


def graph(folder: Path) -> object:
    path, = folder.glob('graph.*')
    found = read_graph(path)
    return found.num_edges, found.csc


def graph_file(name: str, content: str) -> Reader:
    return text_file(name, content, lambda path: graph(path.parent))


def reviews(path: Path) -> object:
    return TextTable(*[str(path)] * 3, ['reviewText'], 'overall', [*'12345'], 1).read()


def articles(folder: Path) -> object:
    names = ('articles.xml', 'labels.xml', 'splits.json')
    return Hyperpartisan(*(str(folder / name) for name in names)).read()


def write_articles(folder: Path) -> None:
    (folder / 'articles.xml').write_text('<articles>\n' + ''.join(
        f'<article id="{i}" title="t"><p>{TEXT[i]} &amp; www.address.com</p></article>\n'
        for i in range(3)) + '</articles>')
    (folder / 'labels.xml').write_text('<articles>\n' + ''.join(
        f'<article id="{i}" hyperpartisan="{"false" if i else "true"}"/>\n'
        for i in range(3)) + '</articles>')
    (folder / 'splits.json').write_text('{"train": [0], "dev": [1], "test": [2]}')


def package_docs(folder: Path) -> object:
    return PackageDocs(str(folder), min_words=1, min_documents=1).read()


def write_package_docs(folder: Path) -> None:
    rows = [{'package': name, 'text': f'{name} {TEXT[0]}'} for name in ('numpy', 'scipy')]
    (folder / 'documents.json').write_text('\n'.join(map(json.dumps, rows)))
    (folder / 'names.json').write_text('{"numpy": ["numpy"], "scipy": ["scipy"]}')


def encode(path: Path) -> object:
    return load_tokenizer(path).encode(TEXT[1]).ids


def new_tokenizer() -> object:
    return train_tokenizer(lambda: TEXT, 120)


def cached(folder: Path) -> object:
    train = EncodedCorpus(folder / 'encoded' / 'train')
    return train.cut(8, 0.5, 0)[-1], train.unigram_entropy((0, 1))


def write_cached(folder: Path) -> None:
    (folder / 'corpus.txt').write_text('\n\n'.join(
        f'Document {i} is here.\n{TEXT[i % 3]}\n' for i in range(100)))
    encode_corpus(folder / 'corpus.txt', new_tokenizer(), folder / 'encoded')
    cached(folder)


def run(folder: Path) -> object:
    return sampled_graphs(folder / 'checkpoints' / 'last.ckpt', samples=1)


def write_run(folder: Path) -> None:
    encoder = {'num_tokens': 17, 'channels': 8, 'num_layers': 1, 'heads': 2, 'max_length': 64}
    source = {'heads': 2, 'head_channels': 4, 'clusters': 3}
    at = 'graphattn.{}'.format
    config = {'model': {'init_args': {'model': {
        'class_path': at('models.SequenceClassifier'), 'init_args': {'num_classes': 10, 'encoder': {
            'class_path': at('models.Encoder'), 'init_args': {**encoder, 'source': {
                'class_path': at('sources.BlockModelSource'), 'init_args': source}}}}}}},
        'data': {'class_path': 'experiments.tasks.Digits', 'init_args': {'batch_size': 4}}}
    (folder / 'checkpoints').mkdir()
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    model = SequenceClassifier(Encoder(source=BlockModelSource(**source), **encoder), 10)
    torch.save({'state_dict': {f'model.{name}': value
                               for name, value in model.state_dict().items()}},
               folder / 'checkpoints' / 'last.ckpt')


def trivia(folder: Path) -> object:
    return TriviaQa(str(folder / 'qa.json'), str(folder / 'qa.json'), str(folder / 'pages')).read()


def write_trivia(folder: Path) -> None:
    (folder / 'pages/wikipedia').mkdir(parents=True)
    (folder / 'pages/wikipedia/A.txt').write_text(TEXT[0])
    (folder / 'qa.json').write_text(json.dumps({
        'Domain': 'Wikipedia', 'VerifiedEval': False, 'Data': [{
            'QuestionId': 'q', 'Question': 'Where?', 'EntityPages': [{'Filename': 'A.txt'}],
            'Answer': {'Value': 'here', 'Aliases': [], 'NormalizedAliases': ['here']}}]}))


def imagenet(folder: Path) -> object:
    return ImageNet64(str(folder), str(folder / 'cache')).read(3 * 64 * 64)


def write_imagenet(folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 3 * 64 * 64)).astype(np.uint8)
    np.savez(folder / 'train_data_batch_1.npz', data=images, labels=np.ones(50, int))
    np.savez(folder / 'val_data.npz', data=images[:1])


def table(path: Path) -> object:
    return TextTable(*[str(path)] * 3).read()


def parquet(texts: Sequence[str]) -> bytes:
    rows, file = pa.table({'text': texts, 'label': np.arange(len(texts)) % 2}), io.BytesIO()
    write_parquet(rows, file, compression='zstd', store_schema=False)
    return file.getvalue()


def images(folder: Path) -> object:
    return ImageFiles(*[str(folder / 'images')] * 3).read(1000)


def write_images(folder: Path) -> None:
    for name, level in (('dark', 10), ('light', 200)):
        (folder / 'images' / name).mkdir(parents=True)
        for kind in ('png', 'jpg', 'gif', 'bmp', 'webp', 'pgm'):
            Image.new('L', (3, 4), level).save(folder / 'images' / name / f'0.{kind}')


def tokens(folder: Path) -> object:
    name = 'ids.npz' if (folder / 'ids.npz').exists() else 'ids.npy'
    return TokenArrays(*[str(folder / name)] * 3).read(1000)


def write_tokens(folder: Path) -> None:
    np.save(folder / 'ids.npy', np.arange(8).reshape(2, 4))
    np.save(folder / 'ids_label.npy', np.array(['a', 'b']))


def new_bert() -> object:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1,
                                num_attention_heads=2, intermediate_size=8,
                                max_position_embeddings=16))


def write_attached(folder: Path) -> None:
    source = LearnedMaskSource(2, 8)
    save_attached(attach(new_bert(), source, hops=2, teleport=.5), folder)


def write_profile(folder: Path) -> None:
    measured = profile(new_bert(), [torch.randint(10, (4, 12))], patterns=[
        'SlidingWindow(1)', '2 keys of 3 clusters'])
    measured.save(folder / 'profile.npz')


def read_profile(folder: Path) -> object:
    measured = Profile.load(folder / 'profile.npz')
    return measured.as_table(), repr(measured), [measured.pattern(row, number) for row in range(
        len(measured.layer)) for number in range(len(measured.patterns))]


def whole_run(folder: Path) -> object:
    return load_run(folder).config


def write_whole_run(folder: Path) -> None:
    write_run(folder)
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    config['model']['class_path'] = 'experiments.modules.Classification'
    (folder / 'config.yaml').write_text(yaml.safe_dump(
        {'seed_everything': 1, 'select_on': None, 'trainer': {'max_epochs': 1}, **config}))
    saved = torch.load(folder / 'checkpoints' / 'last.ckpt')
    write_checkpoint({**saved, 'epoch': 1, 'global_step': 2, 'callbacks': {'RunFolder': {
        'history': [{'epoch': 1}], 'seconds': 1., 'evaluated': {}, 'identity': {
            'options': {'seed_everything': 1}, 'inputs': {}}}}}, folder / 'checkpoints/last.ckpt')


def write_summaries(folder: Path) -> None:
    write_summary(folder, {'accuracy': .5, 'loss': math.nan, 'density': {'layer 0': .5},
                           'heads_without_edges': ['a'], 'epochs': 1, 'seconds': 1.,
                           'versions': {'torch': '2'}, 'inputs': {'data.path': 'f0'}})


def part_of(reader: Reader, name: str) -> Reader:
    return reader._replace(file=name)


CACHED = Reader('encoded/train/layout.json', write_cached, cached)
ARTICLES = Reader('articles.xml', write_articles, articles)
PACKAGES = Reader('documents.json', write_package_docs, package_docs)
ATTACHED = Reader('graphs.json', write_attached, load_attached)
WHOLE_RUN = Reader('config.yaml', write_whole_run, whole_run)
IMAGES = Reader('images/dark/0.png', write_images, images)
TOKENS = Reader('ids.npy', write_tokens, tokens)
TABLE = 'text,label\n' + ''.join(f'"{text}",{i % 2}\n' for i, text in enumerate(TEXT))
TABLE_LINES = ''.join(json.dumps({'text': text, 'label': i % 2}) + '\n'
                      for i, text in enumerate(TEXT))
RUN = Reader('config.yaml', write_run, run)
SQUAD = json.dumps({'data': [{'paragraphs': [{'context': TEXT[0], 'qas': [
    {'id': '1', 'question': 'What?', 'answers': [{'text': 'first', 'answer_start': 4}]}]}]}]})
SWAG = ('sent1,sent2,ending0,ending1,ending2,ending3,label\n'
        'A man enters.,He,sits.,"runs, fast.",waits.,sleeps.,2\n')
HOPS = json.dumps([{'id': '1', 'query': 'is_a x', 'answer': 'a', 'candidates': ['a', 'b'],
                    'supports': TEXT}])
LONG_REVIEW = json.dumps({'reviewText': 'a ' * 2**15, 'overall': 4.}).encode() + b'\n'
REVIEW = ''.join(json.dumps({'reviewText': text, 'overall': 4.}) + '\n' for text in TEXT)
ROWS = 'sentence\tlabel\n' + ''.join(f'{text}\t{i % 2}\n' for i, text in enumerate(TEXT))
READERS = {
    **{f'npz, {form}': matrix_file(form, form == 'csr')
       for form in ('csr', 'csc', 'coo', 'bsr', 'dia')},
    'npz, csr as it is': matrix_file('csr', False),
    'graphml': Reader('graph.graphml', lambda folder: nx.write_graphml(
        nx.cycle_graph(5, nx.DiGraph), folder / 'graph.graphml'), graph),
    'gml': Reader('graph.gml', lambda folder: nx.write_gml(
        nx.cycle_graph(5, nx.DiGraph), folder / 'graph.gml'), graph),
    'npy': Reader('graph.npy', lambda folder: np.save(
        folder / 'graph.npy', SlidingWindow(2).build(12).to_mask().numpy()), graph),
    'npz, dense': Reader('graph.npz', lambda folder: np.savez(
        folder / 'graph.npz', SlidingWindow(2).build(12).to_mask().numpy()), graph),
    'gml, packed': graph_file('graph.gml.gz', 'graph [\n node [ id 0 ]\n]\n'),
    'gexf': Reader('graph.gexf', lambda folder: nx.write_gexf(
        nx.cycle_graph(5, nx.DiGraph), folder / 'graph.gexf'), graph),
    'edges, named': graph_file('graph.csv.gz', 'source,target,weight\n"a, b",c,1\nc,d,0.5\n'),
    'edges': graph_file('graph.txt', '# key query\n0 1\n1 2 # a comment\n2 0\n'),
    'edges, with attributes': graph_file('graph.txt', "a #b {'weight': np.float64(1.0)}\n" * 3),
    'adjacency list': graph_file('graph.adjlist', '# a\n0 1 2\n1 2\n2\n'),
    'multiline adjacency list': graph_file(
        'graph.txt', '#a\n# GMT b\n#\n0 2\n1 {}\n2 {"weight": 1}\n1 0\n2 0\n'),
    'Matrix Market': graph_file('graph.mtx', '%%MatrixMarket matrix coordinate real symmetric\n'
                                             '% a\n3 3 2\n2 1 0.5\n3 2 1\n'),
    'graph6': graph_file('graph.g6', '>>graph6<<DQc\n'),
    'sparse6': graph_file('graph.s6', '>>sparse6<<:An\n'),
    'run, config': RUN,
    'run, checkpoint': part_of(RUN, 'checkpoints/last.ckpt'),
    'manifest': ATTACHED,
    'parameters of sources': part_of(ATTACHED, 'graphs.safetensors'),
    'config of a model': part_of(ATTACHED, 'config.json'),
    'profile': Reader('profile.npz', write_profile, read_profile),
    'masks': Reader('masks.npz', lambda folder: save_masks(folder / 'masks.npz', [Mask(
        FreeLayout(4, True), torch.arange(FreeLayout(4, True).num_values) % 2 == 0)]),
        lambda folder: load_masks(folder / 'masks.npz')),
    'a whole run, config': WHOLE_RUN,
    'a whole run, checkpoint': part_of(WHOLE_RUN, 'checkpoints/last.ckpt'),
    'summary': Reader('summary.json', write_summaries, lambda folder: read_summary(folder)['loss']),
    'JSON lines': text_file('reviews.json', REVIEW, reviews),
    'JSON lines, packed': text_file('reviews.json.gz', REVIEW, reviews),
    'XML': ARTICLES,
    'XML, labels': part_of(ARTICLES, 'labels.xml'),
    'JSON of ids': part_of(ARTICLES, 'splits.json'),
    'TSV': text_file('train.tsv', ROWS, lambda path: list(read_rows(path, TASKS['SST-2']))),
    'ListOps': text_file('basic_val.tsv', 'Source\tTarget\n( [MIN 1 2 ] )\t1\n[SM 9 3 ]\t2\n',
                         lambda path: read_listops(path, 100)),
    'pairs': text_file('new_aan_pairs.test.tsv', b'1.0\ta\tb\tthis\t\xffthat\n' * 3,
                       lambda path: read_pairs(path, 100)),
    'PNG': Reader('sample_0.png', lambda folder: Image.effect_noise((32, 32), 50).save(
        folder / 'sample_0.png'), lambda folder: read_png(folder / 'sample_0.png', 32, 'L')),
    'SQuAD': text_file('squad.json', SQUAD, lambda path: Squad(str(path), str(path)).read()),
    'TriviaQA': Reader('qa.json', write_trivia, trivia),
    'SWAG': text_file('swag.csv', SWAG, lambda path: Swag(str(path), str(path)).read()),
    'WikiHop': text_file('hops.json', HOPS, lambda path: WikiHop(str(path), str(path)).read()),
    'ImageNet': Reader('train_data_batch_1.npz', write_imagenet, imagenet),
    'GLUE, to be labelled': text_file('test.tsv', 'index\tsentence\n0\tA cat.\n1\tA dog.\n',
                                      lambda path: list(read_test_rows(path, TASKS['SST-2']))),
    'table, CSV': text_file('table.csv', TABLE, table),
    'table, Parquet': text_file('table.parquet', parquet(TEXT), table),
    'table, JSON lines': text_file('table.jsonl.gz', TABLE_LINES, table),
    **{f'images, {kind}': part_of(IMAGES, f'images/dark/0.{kind}')
       for kind in ('png', 'jpg', 'gif', 'bmp', 'webp', 'pgm')},
    'token ids': TOKENS,
    'token ids, labels': part_of(TOKENS, 'ids_label.npy'),
    'token ids, together': Reader('ids.npz', lambda folder: np.savez(
        folder / 'ids.npz', tokens=np.arange(8).reshape(2, 4), label=np.arange(2)), tokens),
    'text': text_file('corpus.txt', '\n'.join(TEXT), lambda path: list(read_documents(path))),
    'packages, documents': PACKAGES,
    'packages, names': part_of(PACKAGES, 'names.json'),
    'tokenizer.json': Reader('tokenizer.json', lambda folder: new_tokenizer().save(
        str(folder / 'tokenizer.json')), lambda folder: encode(folder / 'tokenizer.json')),
    'vocab.txt': text_file('vocab.txt', '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nfirst\n', encode),
    **{f'cache, {file}': part_of(CACHED, f'encoded/train/{file}')
       for file in ('layout.json', 'counts.npy', 'tokens.bin', 'sentence_ptr.bin',
                    'document_ptr.bin', 'cut-8-0.5-0.bin')},
}

HOSTILE = [b'', b'\0', b'\xff\xfe', b'-1', b'NaN', b'1e999', b'3000000000', b'9' * 5000, b'"', b'[',
           b'{}', b'[' * 100_000, b'null', b'\n', b'\t', b'&lol;', b'\\ud800', b'true',
           *(struct.pack('<q', number) for number in (-1, 2**31, 2**40, 2**62))]
damages = st.lists(min_size=1, max_size=3, elements=st.tuples(
    st.sampled_from(['flip', 'cut', 'drop', 'repeat', 'insert', 'replace', 'swap']),
    st.integers(0, 2**16), st.integers(0, 2**16), st.sampled_from(HOSTILE)))


def damaged(content: bytes, damage: list[tuple[str, int, int, bytes]]) -> bytes:
    """The content after one damage after the other."""
    for how, at, length, hostile in damage:
        first = at % (len(content) + 1)
        last = min(first + 1 + length % 40, len(content))
        before, part, after = content[:first], content[first:last], content[last:]
        flipped = bytes([part[0] ^ 1 << length % 8]) + part[1:] if part else part
        content = {'flip': before + flipped + after, 'cut': before, 'drop': before + after,
                   'repeat': before + part * 3 + after, 'insert': before + hostile + part + after,
                   'replace': before + hostile + after, 'swap': after + part + before}[how]
    return content


def begin() -> None:
    taken = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (taken + MAX_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def outcome(name: str, valid: Path, content: bytes) -> str:
    """Return the outcome of reading the content: ``'read'``, ``'refused'``, or what must not
    happen."""
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder) / 'valid'
        shutil.copytree(valid, folder)
        (folder / reader.file).write_bytes(content)
        try:
            reader.read(folder)
        except (OSError, ValueError) as error:
            return described(error, folder)
        except BaseException as error:
            return f'{type(error).__name__}: {error}'
    return 'read'


def described(error: BaseException, folder: Path) -> str:
    cause = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "can't allocate memory" in str(cause):
            return f'too much memory: {error}'
        cause = cause.__cause__ or cause.__context__
    return 'refused' if str(folder) in str(error) else f'does not name its file: {error}'


class Child:
    """A process that reads, and may be killed by what it reads."""

    def __init__(self):
        self.pool = None

    def outcome(self, *arguments: object) -> str:
        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, get_context('fork'), begin)
        try:
            return self.pool.submit(outcome, *arguments).result(SECONDS)
        except Exception as error:  # it died, or hangs
            self.end()
            return f'no answer: {type(error).__name__}'

    def end(self) -> None:
        for process in (self.pool._processes or {}).values() if self.pool else ():
            process.kill()
        self.pool = None


@pytest.fixture(scope='module')
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.end()


@pytest.fixture(scope='module')
def valid(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a reader's valid file."""
    folders = {}

    def write(name: str) -> Path:
        writer = READERS[name].write
        if writer not in folders:
            folders[writer] = tmp_path_factory.mktemp('valid')
            writer(folders[writer])
        return folders[writer]

    return write


@pytest.mark.parametrize('name', READERS)
def test_valid_file_is_read(name, child, valid):
    content = (valid(name) / READERS[name].file).read_bytes()
    assert child.outcome(name, valid(name), content) == 'read'


@pytest.mark.parametrize('name', READERS)
@cases(12)
@given(damage=damages)
@example(damage=[('cut', 0, 0, b'')])
def test_damaged_file_is_read_or_refused(name, child, valid, damage):
    content = (valid(name) / READERS[name].file).read_bytes()
    assert child.outcome(name, valid(name), damaged(content, damage)) in {'read', 'refused'}


def npz(**arrays: np.ndarray) -> bytes:
    with tempfile.TemporaryFile() as file:
        np.savez_compressed(file, **{'format': np.array(b'csr'), **arrays})
        file.seek(0)
        return file.read()


def csr(indices: list[int], indptr: list[int], shape: tuple[int, int]) -> bytes:
    return npz(data=np.ones(len(indices)), indices=np.array(indices), indptr=np.array(indptr),
               shape=np.array(shape))


def bomb() -> bytes:
    """An archive of little that says it is 4 GB."""
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, 'w') as archive:
            archive.writestr('data.npy', bytes(2**10))
            archive.filelist[0].file_size = 2**32 - 2
        file.seek(0)
        return file.read()


ALIASES = ''.join(f'a{i}: &a{i} [{", ".join([f"*a{i - 1}"] * 9) if i else 1}]\n' for i in range(30))
MATRIX_MARKET = b'%%MatrixMarket matrix coordinate real general\n'
ATTACKS = {
    'indices out of range': ('npz, csr', lambda: csr([0, 10**6], [0, 1, 2], (2, 2))),
    'negative indices': ('npz, csr', lambda: csr([0, -10**6], [0, 1, 2], (2, 2))),
    'decreasing indptr': ('npz, csr', lambda: csr([0, 1], [0, 10**6, 2], (2, 2))),
    'many rows': ('Matrix Market', lambda: MATRIX_MARKET + b'999999999 3 1\n1 1 1\n'),
    'many entries': ('Matrix Market', lambda: MATRIX_MARKET + b'3 3 999999999\n1 1 1\n'),
    'many nodes of sparse6': ('sparse6', lambda: b':~~~~~~~~~~'),
    'fewer nodes of sparse6': ('sparse6', lambda: b':~~?@????'),
    'a packed GML': ('gml, packed', lambda: gzip.compress(b'graph [' + b' ' * 2**27 + b']')),
    'a tensor without bytes': ('a whole run, checkpoint', lambda: of_checkpoint(
        {'x': torch.zeros(1).expand(10**12)})),
    'an array without bytes': ('cache, counts.npy', lambda: head_of_array((10**12,))),
    'many nodes of graph6': ('graph6', lambda: b'~~?~????'),
    'a dense matrix': ('Matrix Market', lambda: b'%%MatrixMarket matrix array real general\n'
                                                b'9999999 9999999\n1\n'),
    'many tokens': ('npz, csr', lambda: csr([0, 1], [0, 1, 2], (2, 10**12))),
    'npz bomb': ('npz, csr', bomb),
    'large id': ('edges', lambda: b'0 1\n1 3000000000\n'),
    'large numbers': ('edges', lambda: b'0 1\n1 ' + b'9' * 5000),
    'long line': ('JSON lines, packed', lambda: gzip.compress(bytes(2**26), 9)),
    'many lines': ('JSON lines, packed', lambda: gzip.compress(LONG_REVIEW * 2**9, 9)),
    'nested lists': ('JSON lines', lambda: b'[' * 10**6),
    'half a surrogate': ('JSON lines', lambda: b'{"reviewText": "a b \\ud800 c", "overall": 1}'),
    'a long number': ('JSON lines', lambda: b'{"overall": ' + b'9' * 5000 + b'}'),
    'aliases': ('run, config', lambda: ALIASES.encode()),
    'an alias of itself': ('run, config', lambda: b'model: &a [*a]\ndata: 1'),
    'nested YAML': ('run, config', lambda: b'[' * 10**4),
    'layers without end': ('a whole run, config', lambda: sized(num_layers=10**9)),
    'layers without tensors': ('a whole run, config', lambda: sized(num_layers=50_000, channels=2)),
    'a wide model': ('a whole run, config', lambda: sized(channels=10**7)),
    'a wide table': ('run, config', lambda: sized(max_length=10**12)),
    'a mask of all memory': ('manifest', lambda: changed_manifest(arguments={
        'heads': 2, 'size': 10**6})),
    'layers of a manifest': ('manifest', lambda: changed_manifest(50_000)),
    'a kernel of a hub': ('manifest', lambda: changed_manifest(implementations={
        '': 'some-org/some-kernel'})),
    'no such head': ('manifest', lambda: changed_manifest(heads=[99])),
    'entities': ('XML', lambda: b'<!DOCTYPE a [<!ENTITY b "c">]><articles>&b;</articles>'),
    'abbreviations': ('text', lambda: b'A e.g. ' * 2**17),
    'gaps in the ids': ('tokenizer.json', lambda: vocabulary({'far': 2**30})),
    'two words of one id': ('tokenizer.json', lambda: vocabulary({'near': 1})),
    'no unknown word': ('tokenizer.json', lambda: vocabulary({}, unk_token='[NONE]')),
}


def written(name: str) -> str:
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        reader.write(Path(folder))
        return (Path(folder) / reader.file).read_text()


def sized(**sizes: int) -> bytes:
    """The config of a run whose encoder has other sizes."""
    config = yaml.safe_load(written('a whole run, config'))
    config['model']['init_args']['model']['init_args']['encoder']['init_args'] |= sizes
    return yaml.safe_dump(config).encode()


def of_checkpoint(state: dict[str, torch.Tensor]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint({'state_dict': state}, Path(folder) / 'last.ckpt')
        return (Path(folder) / 'last.ckpt').read_bytes()


def head_of_array(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {'descr': '<i8', 'fortran_order': False,
                                                'shape': shape})
    return file.getvalue()


def changed_manifest(times: int = 1, **entries: object) -> bytes:
    manifest = json.loads(written('manifest'))
    top = {name: entries.pop(name) for name in list(entries) if name in manifest}
    layers = [{**layer, **entries, 'name': f"{layer['name']}{number or ''}"}
              for layer in manifest['layers'] for number in range(times)]
    return json.dumps({**manifest, 'layers': layers, **top}).encode()


def vocabulary(words: dict[str, int], **options: object) -> bytes:
    description = json.loads(new_tokenizer().to_str())
    description['model']['vocab'] |= words
    return json.dumps({**description, 'model': {**description['model'], **options}}).encode()


@pytest.mark.parametrize('attack', ATTACKS)
def test_attack_is_refused(attack, child, valid):
    name, content = ATTACKS[attack]
    expected = 'read' if attack in ('abbreviations', 'large id') else 'refused'
    assert child.outcome(name, valid(name), content()) == expected
