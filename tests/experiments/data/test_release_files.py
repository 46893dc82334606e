"""The files of Long Range Arena's five tasks: what is read, and what is refused by name."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.data import cifar
from experiments.data.byte_text import AanPairs, ImdbBytes
from experiments.data.cifar import Cifar10
from experiments.data.listops import ListOpsFiles
from experiments.data.pathfinder import PathfinderFiles
from experiments.data.sequences import PARTS

TREES = [('( ( ( [MAX 2 ) 9 ) ] )', 9), ('( ( ( [MED 4 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )', 4),
         ('3', 3)]


def write_listops(folder: Path) -> None:
    for name in ('train', 'val', 'test'):
        rows = ''.join(f'{source}\t{target}\r\n' for source, target in TREES)
        (folder / f'basic_{name}.tsv').write_bytes(f'Source\tTarget\r\n{rows}'.encode())


def write_pairs(folder: Path) -> None:
    rows = b'1.0\tP05-1001\tW03\tthe "first" text\t\xff\xfe second\n0.0\tA\tB\tthird\tfourth\n'
    for name in ('train', 'eval', 'test'):
        (folder / f'new_aan_pairs.{name}.tsv').write_bytes(rows)


def write_pathfinder(folder: Path, lists: int = 2, pictures: int = 10) -> None:
    (folder / 'metadata').mkdir()
    for number in range(lists):
        (folder / 'imgs' / f'{number}').mkdir(parents=True)
        rows = ''
        for i in range(pictures):
            picture = np.full((32, 32), 10 * number + i, np.uint8)
            Image.fromarray(picture).save(folder / 'imgs' / f'{number}' / f'sample_{i}.png')
            rows += f'imgs/{number} sample_{i}.png {i} {i % 2} 1.0 14 4 2 0.5 1 1\n'
        (folder / 'metadata' / f'{number}.npy').write_text(rows)


def write_imdb(folder: Path) -> None:
    for part in ('train', 'test'):
        for name in ('neg', 'pos'):
            (folder / part / name).mkdir(parents=True)
            for i in range(20):
                text = f'{part} {name} {i} <br />'.encode() + b'\xff\x00'
                (folder / part / name / f'{i}_7.txt').write_bytes(text)


def write_cifar(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch'):
        rows = rng.integers(0, 256, (cifar.IMAGES_PER_FILE, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (folder / f'{name}.bin').write_bytes(rows.tobytes())


RELEASES = {
    'listops': (ListOpsFiles, write_listops),
    'pairs': (AanPairs, write_pairs),
    'pathfinder': (PathfinderFiles, write_pathfinder),
    'imdb': (ImdbBytes, write_imdb),
    'cifar': (Cifar10, write_cifar),
}


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr(cifar, 'IMAGES_PER_FILE', 20)


@pytest.fixture
def release(request, tmp_path):
    source, write = RELEASES[request.param]
    write(tmp_path)
    return source(str(tmp_path)), tmp_path


def of(name):
    return pytest.mark.parametrize('release', [name], indirect=True)


@pytest.mark.parametrize('release', RELEASES, indirect=True)
def test_a_release_is_read_as_what_a_task_expects(release):
    source, _ = release
    data = source.read(1024)
    assert tuple(data.parts) == PARTS
    for part in data.parts.values():
        assert part.tokens.dtype == np.uint8 and part.tokens.max() < data.num_tokens
        assert len(part.label) and 0 <= part.label.min() <= part.label.max() < data.num_classes
        assert part.ptr[0] == 0 and part.ptr[-1] == len(part.tokens)
        assert (np.diff(part.ptr) > 0).all()
        assert part.num_sequences == part.sequences_per_example * len(part.label)
    again = source.read(1024)
    assert all(np.array_equal(data.parts[part].tokens, again.parts[part].tokens) for part in PARTS)


@pytest.mark.parametrize('source', [source for source, _ in RELEASES.values()])
def test_a_release_that_is_not_there_is_named(source, tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        source(str(tmp_path / 'nowhere')).read(1024)


@of('listops')
@pytest.mark.parametrize('content, match', [
    (b'', 'line 1: expected the header .Source'),
    (b'Source\tTarget\n', 'at least one tree'),
    (b'Source\tTarget\n[MIN 1 2 ]\t2\n', 'line 2: expected the target 1, .* .got .2'),
    (b'Source\tTarget\n[MIN 1 2', 'line 2: expected a complete tree'),
    (b'Source\tTarget\n[MIN 1 [ADD 2 ] ]\t1\n', r"line 2: expected only symbols .*\[ADD"),
    (b'Source\tTarget\n\xff\t1\n', 'line 2: not ASCII'),
])
def test_a_bad_file_of_listops(content, match, release):
    path = release[1] / 'basic_val.tsv'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f'basic_val.tsv.*{match}'):
        release[0].read(100)


@of('pairs')
@pytest.mark.parametrize('content, match', [
    (b'', 'at least one pair'),
    (b'1.0\tA\tB\ttext\n', 'line 1: expected the columns label, .* .got 4 columns'),
    (b'1.0\tA\tB\tx\ty\n2.0\tA\tB\tx\ty\n', "line 2: expected the label 0.0 or 1.0 .got '2.0'"),
    (b'1.0\tA\tB\tx\t\n', 'line 1: expected the columns label'),
    (b'1.0\tA\tB\tx\ty\n1.0\tA\tB', 'line 2: expected the columns label'),
])
def test_a_bad_file_of_pairs(content, match, release):
    (release[1] / 'new_aan_pairs.eval.tsv').write_bytes(content)
    with pytest.raises(ValueError, match=f'new_aan_pairs.eval.tsv.*{match}'):
        release[0].read(100)


@of('pathfinder')
def test_pathfinder_is_divided_eight_one_one(release):
    source, folder = release
    ordered = PathfinderFiles(str(folder), seed=None).read(1024)
    assert [len(ordered.parts[part].label) for part in PARTS] == [16, 2, 2]
    assert ordered.parts['train'].tokens[::1024].tolist() == list(range(16))
    assert ordered.parts['train'].label.tolist() == 8 * [0, 1]
    shuffled = source.read(1024)
    levels = np.concatenate([shuffled.parts[part].tokens[::1024] for part in PARTS])
    assert sorted(levels) == list(range(20)) and levels.tolist() != list(range(20))


def bad_list(content):
    return lambda folder: (folder / 'metadata' / '1.npy').write_bytes(content)


def bad_picture(write):
    return lambda folder: write(folder / 'imgs' / '0' / 'sample_3.png')


@of('pathfinder')
@pytest.mark.parametrize('damage, match', [
    (bad_list(b''), '1.npy: .*at least one picture'),
    (bad_list(b'imgs/0 sample_0.png 0 2 1.0\n'), '1.npy, line 1: expected a folder'),
    (bad_list(b'../.. sample_0.png 0 1 1.0\n'), '1.npy, line 1: expected a folder'),
    (bad_list(b'imgs/0 ../../x.png 0 1 1.0\n'), '1.npy, line 1: expected a folder'),
    (bad_list(b'imgs/0 sample_99.png 0 1 1.0\n'), 'sample_99.png: expected a PNG'),
    (bad_list(b'imgs/0 sample_3.png 0 1 1.0\n'), 'sample_3.png.*listed.*got 2 lines'),
    (bad_list(b'\x93NUMPY\x01'), '1.npy, line 1: not ASCII'),
    (bad_picture(lambda path: path.unlink()), 'sample_3.png: expected a PNG'),
    (bad_picture(lambda path: path.write_bytes(path.read_bytes()[:-20])),
     'sample_3.png: expected a PNG'),
    (bad_picture(lambda path: Image.new('L', (32, 33)).save(path)), '32 x 33 pixels of mode L'),
    (bad_picture(lambda path: Image.new('RGB', (32, 32)).save(path)), '32 x 32 pixels of mode RGB'),
    (bad_picture(lambda path: Image.new('L', (8_000, 8_000)).save(path)), 'sample_3.png'),
    (bad_picture(lambda path: Image.new('L', (32, 32)).save(path, 'BMP')), 'expected a PNG'),
])
def test_a_bad_file_of_pathfinder(damage, match, release):
    damage(release[1])
    with pytest.raises(ValueError, match=match):
        release[0].read(1024)


@of('imdb')
def test_reviews_are_bytes_as_they_are(release):
    source, folder = release
    data = source.read(100)
    test = data.parts['test']
    assert test.sequence(0).tobytes() == b'test neg 0 <br />\xff\x00'
    assert test.label.tolist() == 20 * [0] + 20 * [1]
    learn = [data.parts[part].sequence(i).tobytes() for part in ('train', 'dev')
             for i in range(len(data.parts[part].label))]
    assert len(set(learn)) == 40 and not any(text.startswith(b'test') for text in learn)
    theirs = ImdbBytes(str(folder), dev_is_test=True).read(10)
    assert len(theirs.parts['train'].label) == 40
    assert np.array_equal(theirs.parts['dev'].tokens, theirs.parts['test'].tokens)


@of('imdb')
def test_an_empty_review_is_named(release):
    (release[1] / 'test' / 'pos' / '3_7.txt').write_bytes(b' \n')
    with pytest.raises(ValueError, match='3_7.txt:.*empty document'):
        release[0].read(100)


@of('cifar')
def test_cifar_is_grey_and_in_the_order_of_its_files(release):
    source, folder = release
    data = source.read(1024)
    rows = np.frombuffer((folder / 'data_batch_1.bin').read_bytes(), np.uint8).reshape(20, -1)
    assert [len(data.parts[part].label) for part in PARTS] == [90, 10, 20]
    assert data.parts['train'].label[:20].tolist() == rows[:, 0].tolist()
    colours = rows[0, 1:].reshape(3, -1).astype(float)
    expected = np.array([0.2989, 0.587, 0.114]) @ colours
    assert np.abs(data.parts['train'].sequence(0) - expected).max() <= 1


@of('cifar')
@pytest.mark.parametrize('damage, match', [
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), 'in 61,460 bytes .got 61,459'),
    (lambda path: path.write_bytes(b'\x0a' + path.read_bytes()[1:]), 'labels from 0 to 9 .got 10'),
    (lambda path: path.unlink(), 'cannot be read .No such file'),
])
def test_a_bad_file_of_cifar(damage, match, release):
    damage(release[1] / 'data_batch_4.bin')
    with pytest.raises(ValueError, match=f'data_batch_4.bin.*{match}'):
        release[0].read(1024)
