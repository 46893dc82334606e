"""Tables, folders of images and labels in the forms that people have: each is read rightly, with
one line that says so, or refused by what it is."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.data.image_files import ImageFiles, read_image
from experiments.data.text.corpus import read_documents
from experiments.data.text.document_files import document_paths
from experiments.data.text.text_table import read_texts
from graphattn.utils import reading
from graphattn.utils.reading import read_lines

ROWS = [(('rain, snow',), '1'), (('a "b"\nc',), '2')]
COMMAS = 'text,label\n"rain, snow",1\n"a ""b""\nc",2\n'
SEMICOLONS = 'text;label\nrain, snow;1\n"a ""b""\nc";2\n'
TABS = 'text\tlabel\nrain, snow\t1\n"a ""b""\nc"\t2\n'
OBJECTS = ('{"text": "rain, snow", "label": "1"}\n'
           '{"text": "a \\"b\\"\\nc", "label": 2}\n')
READ = {  # what is written, and the end of the line that says what was read
    'commas': ('a.csv', COMMAS, '2 rows of 2 columns between commas'),
    'semicolons, as Excel in most of Europe': ('a.csv', SEMICOLONS, '2 columns between semicolons'),
    'tabs': ('a.tsv', TABS, '2 columns between tabs'),
    'tabs in a .csv': ('a.csv', TABS, '2 columns between tabs'),
    'commas in a .tsv': ('a.tsv', COMMAS, '2 columns between commas'),
    'bars': ('a.csv', SEMICOLONS.replace(';', '|'), '2 columns between vertical bars'),
    'sep=': ('a.csv', f'sep=;\r\n{SEMICOLONS}', '2 columns between semicolons'),
    'a mark of the byte order': ('a.csv', f'\ufeff{SEMICOLONS}', 'between semicolons'),
    'line ends of Windows': ('a.csv', COMMAS.replace('1\n', '1\r\n').replace('2\n', '2\r\n'),
                             '2 rows of 2 columns between commas'),
    'line ends of old Macs': ('a.csv', COMMAS.replace('l\n', 'l\r').replace('1\n', '1\r').replace(
        '2\n', '2\r'), '2 rows of 2 columns between commas'),
    'no line end at the end': ('a.csv', COMMAS.rstrip(), '2 rows of 2 columns between commas'),
    'packed': ('a.csv.gz', COMMAS, '2 rows of 2 columns between commas'),
    'blank rows and columns': (
        'a.csv', 'text,label,,\n"rain, snow",1,,\n,,,\n\n , ,,\n"a ""b""\nc",2,,\n',
        '2 rows of 4 columns between commas; left out: blank rows: 3, columns without a name: 2'),
    'separators behind a row': ('a.csv', COMMAS.replace('1\n', '1,,,\n'), '2 rows of 2 columns'),
    'blanks around names': ('a.csv', COMMAS.replace('text,', ' text , '), '2 rows of 2 columns'),
    'numbers of rows, as pandas': (
        'a.csv', ',text,label\n0,"rain, snow",1\n1,"a ""b""\nc",2\n',
        'left out: columns without a name: 1'),
    'other columns': ('a.csv', 'id,label,text\n7,1,"rain, snow"\n8,2,"a ""b""\nc"\n',
                      "3 columns between commas; left out: columns 'id': 1"),
    'objects': ('a.jsonl', OBJECTS, '2 objects'),
    'objects and blank lines': ('a.json', OBJECTS.replace('}\n', '}\n\n'),
                                '2 objects; left out: blank lines: 2'),
    'objects, packed': ('a.ndjson.gz', OBJECTS, '2 objects'),
}
REFUSED = {
    'UTF-16, as "Unicode text" of Excel': ('a.csv', TABS.encode('utf-16'), 'UTF-16; save it as'),
    'UTF-16 of objects': ('a.jsonl', OBJECTS.encode('utf-16'), 'UTF-16; save it as'),
    'the code page of Windows': ('a.csv', COMMAS.replace('rain', 'é').encode('cp1252'),
                                 'line 2: not UTF-8 .*; save the file as UTF-8'),
    'a workbook': ('a.csv', b'PK\x03\x04\x14\0', "Excel workbook .*save .* 'CSV UTF-8'"),
    'an old workbook': ('a.csv', b'\xd0\xcf\x11\xe0\xa1\xb1', 'Excel workbook'),
    'packed, without saying so': ('a.csv', gzip.compress(COMMAS.encode()), r'gzip.*ends in \.gz'),
    'Parquet': ('a.csv', b'PAR1\x15\x04', 'Parquet'),
    'a workbook by its name': ('a.xlsx', b'PK\x03\x04\x14\0', 'must be a table .*suffix .csv'),
    'no header': ('a.csv', '"rain, snow",1\nx,2\n', "line.*'columns'"),
    'a quotation mark that is not closed': ('a.csv', 'text,label\n"rain,1\n', 'never closed'),
    'quotation marks behind backslashes': ('a.csv', 'text,label\n"a \\"b\\"",1\n', 'double each'),
    'a separator in a text': ('a.csv', 'text;label\nrain; snow;1\n', 'between semicolons .got 3'),
    'a row that is too short': ('a.csv', 'text,label\nrain\n', 'expected 2 columns .* .got 1'),
    'no label': ('a.csv', 'text,label\nrain,\n', "in 'label' .got ''"),
    'no text': ('a.csv', 'text,label\n,1\n', "in 'text' .got ''"),
    'an array of objects': ('a.json', '[{"text": "a"}]', 'got an array.; in pandas'),
    'an array over many lines': ('a.json', '[\n {"text": "a"}\n]', 'got an array.; in pandas'),
    'labels that are no whole numbers': ('a.jsonl', '{"text": "a", "label": 0.5}', 'or an integer'),
}


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
    return path


@pytest.mark.parametrize('form', READ)
def test_a_table_is_read_and_one_line_says_so(form, tmp_path, capsys):
    name, content, said = READ[form]
    rows = list(read_texts(write(tmp_path / name, content), label='label'))
    assert [(row.texts, row.label) for row in rows] == ROWS
    line, = capsys.readouterr().out.splitlines()
    assert line.startswith(f'{tmp_path / name}: 2 ') and said in line
    assert ('left out' in line) == ('left out' in said)


@pytest.mark.parametrize('form', REFUSED)
def test_a_table_is_refused_by_what_it_is(form, tmp_path):
    name, content, words = REFUSED[form]
    with pytest.raises(ValueError, match=words) as raised:
        list(read_texts(write(tmp_path / name, content), label='label'))
    assert name in str(raised.value) and 'newline=' not in str(raised.value)


def test_a_small_packed_file_has_a_bound_of_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, 'LINES', 1000)
    (tmp_path / 'a.csv.gz').write_bytes(gzip.compress(b'text,label\n' + b'\n' * 100_000))
    size = (tmp_path / 'a.csv.gz').stat().st_size
    numbers = []
    with pytest.raises(ValueError, match=r'a\.csv\.gz, line .*; decompress.*first'):
        numbers.extend(number for number, _ in read_lines(tmp_path / 'a.csv.gz'))
    assert numbers[-1] == 4 * size + 1000


INK = np.array([[0, 255, 255, 255], [255, 0, 0, 255]], np.uint8)  # what is to be seen


def in_alpha(ink):
    """Black, and drawn by its opacity alone."""
    return Image.fromarray(np.stack([0 * ink, 0 * ink, 0 * ink, 255 - ink], axis=2))


def on_its_side(ink):
    image = Image.fromarray(np.rot90(ink, 1).copy())
    image.getexif()[0x0112] = 6  # to be turned by 90 degrees to the right
    return image


def with_palette(ink):
    image = Image.fromarray((ink == 0).astype(np.uint8), 'P')
    image.putpalette([255, 0, 0, 0, 0, 0])  # red where nothing is to be seen
    image.info['transparency'] = 0
    return image


IMAGES = {
    'a.PNG': (Image.fromarray, {}), 'a.gif': (Image.fromarray, {}), 'a.TIFF': (Image.fromarray, {}),
    'a.webp': (Image.fromarray, {'lossless': True}), 'alpha.png': (in_alpha, {}),
    'grey and alpha.png': (lambda ink: in_alpha(ink).convert('LA'), {}),
    'palette.png': (with_palette, {}), 'palette.gif': (with_palette, {'transparency': 0}),
    'turned.png': (on_its_side, {'exif': True}), 'turned.tif': (on_its_side, {'exif': True}),
    'one bit.png': (lambda ink: Image.fromarray(ink).convert('1'), {}),
    'colours.png': (lambda ink: Image.fromarray(ink).convert('RGB'), {}),
    'a key of transparency.png': (lambda ink: Image.fromarray(np.where(ink, 7, 0).astype(np.uint8)),
                                  {'transparency': 7}),
}


def saved(path, image, options):
    if options.get('exif'):
        options = {**options, 'exif': image.getexif()}
    image.save(path, **options)
    return path


@pytest.mark.parametrize('name', IMAGES)
def test_an_image_is_what_is_seen_of_it(name, tmp_path):
    made, options = IMAGES[name]
    path = saved(tmp_path / name, made(INK), options)
    assert np.array_equal(read_image(path), INK)
    assert np.array_equal(read_image(path, colour=True), np.stack([INK] * 3, axis=2))


def test_images_that_are_white_on_nothing_are_refused(tmp_path):
    for place in range(4):
        white = np.full((3, 4, 4), 255, np.uint8)
        white[place % 3, place, 3] = 0
        (folder := tmp_path / f'{place % 2}').mkdir(exist_ok=True)
        Image.fromarray(white).save(folder / f'{place}.png')
    with pytest.raises(ValueError, match='images.*identical .*white'):
        ImageFiles(str(tmp_path)).read(99)


@pytest.mark.parametrize('read', [
    lambda folder: [' '.join(document) for document in read_documents(folder)],
    lambda folder: [path.read_text() for path in document_paths(folder, '.txt')]],
    ids=['a corpus', 'documents'])
def test_hidden_copies_of_texts_are_left_out(read, tmp_path, capsys):
    for name in ('a.txt', 'B.TXT', 'deep/c.txt', '.ipynb_checkpoints/a-checkpoint.txt', '._a.txt'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'{Path(name).name} is a text.')
    assert sorted(read(tmp_path)) == ['B.TXT is a text.', 'a.txt is a text.', 'c.txt is a text.']
    line, = capsys.readouterr().out.splitlines()
    assert line.startswith(f'{tmp_path}: 3 ') and line.endswith('left out: hidden: 2')
