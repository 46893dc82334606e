"""Images as bytes in raster order, from the files of CIFAR-10 and ImageNet-64, and stand-ins."""

import io

import numpy as np
import pytest
from PIL import Image

from experiments.data import cifar
from experiments.data.cifar import CifarColours
from experiments.data.digits import DigitImages
from experiments.data.imagenet64 import BYTES, ImageNet64

RNG = np.random.default_rng(0)


def planes(number, pixels):
    """Red is 0 to 84, green 85 to 169, blue 170 to 254."""
    return np.concatenate([RNG.integers(85 * colour, 85 * (colour + 1), (number, pixels))
                           for colour in range(3)], axis=1).astype(np.uint8)


@pytest.fixture
def cifar_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, 'IMAGES_PER_FILE', 20)
    images = {}
    for name in (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch'):
        images[name] = planes(20, 1024)
        rows = np.concatenate([RNG.integers(0, 10, (20, 1)).astype(np.uint8), images[name]], axis=1)
        (tmp_path / f'{name}.bin').write_bytes(rows.tobytes())
    return tmp_path, images


def test_cifar_in_colour(cifar_folder):
    folder, images = cifar_folder
    data = CifarColours(str(folder)).read(3072)
    assert data.shape == (32, 32, 3) and data.num_tokens == 256
    assert [part.num_sequences for part in data.parts.values()] == [90, 10, 20]
    image = data.parts['test'].sequence(3)
    assert len(image) == 3072 and (image // 85).tolist() == [0, 1, 2] * 1024
    assert image[1::3].tolist() == images['test_batch'][3, 1024:2048].tolist()
    with pytest.raises(ValueError, match="'max_length' must be at least 3072 .got 3071"):
        CifarColours(str(folder)).read(3071)


def write_npz(folder, **others):
    images = {name: planes(number, 4096) for name, number in (
        ('train_data_batch_1', 40), ('train_data_batch_2', 60), ('val_data', 5))}
    for name, data in images.items():
        np.savez(folder / f'{name}.npz', **{'data': data, 'labels': np.ones(len(data), int),
                                            'mean': np.zeros(BYTES), **others})
    return images


def test_imagenet_from_arrays(tmp_path):
    images = write_npz(tmp_path)
    data = ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    assert [part.num_sequences for part in data.parts.values()] == [98, 2, 5]
    assert data.shape == (64, 64, 3)
    image = data.parts['dev'].sequence(1)
    assert (image // 85).tolist() == [0, 1, 2] * 4096
    assert image[2::3].tolist() == images['train_data_batch_2'][59, 8192:].tolist()
    base = image
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)  # what a batch does not need is not read
    for path in tmp_path.glob('*.npz'):
        path.unlink()
    again = ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    assert np.array_equal(again.parts['dev'].sequence(1), image)
    taken = again.parts['train'].take(np.array([3, 1]))
    assert taken.num_sequences == 2 and not isinstance(taken.tokens, np.memmap)


def write_png(path, size=(64, 64), mode='RGB', content=None):
    path.parent.mkdir(exist_ok=True)
    shape = (*size[::-1], 3) if mode == 'RGB' else size[::-1]
    image = RNG.integers(0, 256, shape).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(image, mode).save(file, 'PNG')
    path.write_bytes(file.getvalue() if content is None else content)
    return image


def test_a_picture_that_was_replaced_is_read_anew(tmp_path):
    for name in 'train_64x64/0.png', 'train_64x64/1.png', 'valid_64x64/0.png':
        write_png(tmp_path / name)
    ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    image = write_png(tmp_path / 'valid_64x64/0.png')
    data = ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    assert np.array_equal(data.parts['test'].sequence(0), image.reshape(-1))


@pytest.mark.parametrize('options, match', [
    (dict(size=(32, 64)), '0.png: expected a PNG picture of 64 x 64.*got 32 x 64.*mode RGB'),
    (dict(content=b'no picture'), '0.png: expected a PNG'),
    (dict(content=b'\x89PNG\r\n\x1a\n' + bytes(30)), '0.png: expected a PNG')])
def test_pictures_of_another_kind_are_refused(options, match, tmp_path):
    write_png(tmp_path / 'train_64x64/0.png', **options)
    with pytest.raises(ValueError, match=match):
        ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    assert not list((tmp_path / 'cache').iterdir())


@pytest.mark.parametrize('data, match', [
    (np.zeros((2, 3072), np.uint8), r"expected 'data' as uint8 .*num_images, 12288\] .*3072"),
    (np.zeros((2, BYTES), np.int64), 'got int64 of shape'),
    (np.array([{}] * 2), 'cannot be read as NumPy arrays')])
def test_arrays_of_another_kind_are_refused_and_no_pickle_is_opened(data, match, tmp_path):
    np.savez(tmp_path / 'train_data_batch_1.npz', data=data)
    with pytest.raises(ValueError, match=f'train_data_batch_1.npz.*{match}'):
        ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)


def test_imagenet_that_is_not_there_or_damaged_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'path' must contain train_data"):
        ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    np.savez(tmp_path / 'train_data_batch_1.npz', other=np.zeros(3))
    with pytest.raises(ValueError, match="train_data_batch_1.npz.*expected an array 'data'"):
        ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    (tmp_path / 'train_data_batch_1.npz').write_bytes(b'PK')
    with pytest.raises(ValueError, match="train_data_batch_1.npz cannot be read as NumPy arrays"):
        ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    write_npz(tmp_path)
    ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)
    next(tmp_path.glob('cache/*/train.bin')).write_bytes(bytes(BYTES + 5))
    with pytest.raises(ValueError, match=r"'cache' is damaged .*12,293 bytes are not a whole"):
        ImageNet64(str(tmp_path), str(tmp_path / 'cache')).read(BYTES)


def test_digits_are_square():
    assert DigitImages().read(64).shape == (8, 8, 1)
