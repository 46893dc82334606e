"""Data have one order, whatever that of hashes and of folders on the disk is."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.experiments.data.test_release_files import write_pathfinder
from tests.experiments.own_files import write_images
from tests.forked import forked

ONES = ['1', '01', '001', '0001', '00001', '000001', '0000001', '00000001']  # equal as numbers
READ = '''
import json, os, random, sys
from hashlib import blake2b
from pathlib import Path

shuffled = random.Random(int(os.environ['PYTHONHASHSEED']))

class Entries(list):
    __enter__, __exit__ = (lambda self: self), (lambda self, *error: None)

def in_any_order(list_folder):
    def listed(*path):
        entries = Entries(list_folder(*path))
        shuffled.shuffle(entries)
        return entries
    return listed

os.scandir, os.listdir = in_any_order(os.scandir), in_any_order(os.listdir)

from experiments.data.byte_text import DocumentBytes, ImdbBytes
from experiments.data.image_files import ImageFiles
from experiments.data.labels import class_names
from experiments.data.pathfinder import PathfinderFiles
from experiments.data.text.corpus import read_documents
from experiments.data.text.document_files import TextFolders
from experiments.data.text.package_docs import names_pattern, variants
from experiments.data.text.text_table import TextTable
from experiments.data.text.tokenizer import train_tokenizer
from experiments.data.token_arrays import TokenArrays

folder, ones = Path(sys.argv[1]), json.loads(sys.argv[2])

def digest(data):
    parts = data.parts if hasattr(data, 'parts') else data
    plain = {name: [part.tokens.tolist(), part.label.tolist()] if hasattr(part, 'tokens') else part
             for name, part in parts.items()}
    return blake2b(repr([getattr(data, 'classes', None), plain]).encode()).hexdigest()

say = {
    'class_names': class_names(ones, None, 'mine'),
    'names': [variants(ones), names_pattern([*ones, 'ab', 'ba', 'torch', 'numpy']).pattern],
    'csv': digest(TextTable(str(folder / 'a.csv')).read()),
    'tokens': digest(TokenArrays(str(folder / 'a.npz')).read(9)),
    'images': digest(ImageFiles(str(folder / 'images')).read(99)),
    'imdb': digest(TextFolders(str(folder / 'imdb')).read()),
    'bytes': digest(DocumentBytes(TextFolders(str(folder / 'news'))).read(99)),
    'folders': digest(TextFolders(str(folder / 'news')).read()),
    'corpus': [*read_documents(folder / 'imdb' / 'train' / 'pos')],
    'pathfinder': digest(PathfinderFiles(str(folder / 'pathfinder')).read(9999)),
    'tokenizer': train_tokenizer(lambda: ['ab ba cd dc ef fe gh hg'], 60).to_str(),
}
print(json.dumps(say))
'''


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('read')
    rows = [(f'text {i} {label}', label) for i in range(12) for label in ONES]
    (folder / 'a.csv').write_text('\n'.join(['text,label', *map(','.join, rows)]))
    np.savez(folder / 'a.npz', tokens=np.arange(96)[:, None] + np.arange(3), label=ONES * 12)
    write_images(folder / 'images', 30)
    for place, name in enumerate(ONES):
        (folder / 'images' / 'dark').rename(folder / 'images' / name)
        write_images(folder / 'images', 30, seed=place + 1)
    for part in ('train', 'test'):
        for number, name in enumerate(ONES):
            path = folder / 'imdb' / part / ('pos' if number % 2 else 'neg') / f'{name}.txt'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'A text of {name}. And some.')
            for message in range(6):
                path = folder / 'news' / part / name / str(message)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f'From: me\n\nMessage {message} of {name} in {part}.')
    (folder / 'pathfinder').mkdir()
    write_pathfinder(folder / 'pathfinder')
    lists = folder / 'pathfinder' / 'metadata'
    (lists / '01.npy').write_text((lists / '0.npy').read_text())
    (lists / '0.npy').unlink()
    return folder


@pytest.mark.slow
def test_what_is_read_hangs_on_no_hash_and_no_order_of_the_disk(folder):
    arguments = [str(folder), json.dumps(ONES)]
    other = subprocess.run([sys.executable, '-c', READ, *arguments], stdout=subprocess.PIPE,
                           text=True, check=True, env=os.environ | {'PYTHONHASHSEED': '2'}).stdout

    def read_here():
        sys.argv = ['read', *arguments]
        os.environ['PYTHONHASHSEED'] = '1'
        exec(READ, {})

    one = forked(read_here)[0].stdout  # by the hashes of this process
    one, other = (json.loads(said.splitlines()[-1]) for said in (one, other))
    assert {name for name in one if one[name] != other[name]} == set()
