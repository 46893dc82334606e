import errno
import json

import numpy as np
import pytest

from experiments.data.cached_arrays import cached_arrays


class Maker:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return {'x': np.arange(5) + 100 * self.times, 'y': np.zeros((2, 2))}


def test_arrays_are_made_once_for_each_set_of_parameters(tmp_path):
    make = Maker()
    first = cached_arrays(tmp_path, 'name', {'seed': 0}, make)
    again = cached_arrays(tmp_path, 'name', {'seed': 0}, make)
    other = cached_arrays(tmp_path, 'name', {'seed': 1}, make)
    assert np.array_equal(first['x'], again['x']) and not np.array_equal(first['x'], other['x'])
    assert make.times == 2 and len(list(tmp_path.iterdir())) == 2


def damage_array(folder):
    content = bytearray((folder / 'x.npy').read_bytes())
    content[-1] ^= 1
    (folder / 'x.npy').write_bytes(content)


def cut_array(folder):
    (folder / 'x.npy').write_bytes((folder / 'x.npy').read_bytes()[:-8])


def other_parameters(folder):
    manifest = json.loads((folder / 'manifest.json').read_text())
    (folder / 'manifest.json').write_text(json.dumps({**manifest, 'parameters': {'seed': 7}}))


def pickled(folder):
    np.save(folder / 'x.npy', np.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize('damage', [
    damage_array, cut_array, other_parameters, pickled,
    lambda folder: (folder / 'x.npy').unlink(),
    lambda folder: (folder / 'manifest.json').unlink(),
    lambda folder: (folder / 'manifest.json').write_text('{"parameters": 1}'),
    lambda folder: (folder / 'manifest.json').write_text(
        '{"parameters": {"seed": 0}, "digests": [1]}'),
    lambda folder: (folder / 'manifest.json').write_bytes(b'\xff'),
], ids=['flipped', 'cut', 'other parameters', 'pickle', 'no array', 'no manifest', 'not its keys',
        'no digests', 'not UTF-8'])
def test_what_is_damaged_or_of_other_parameters_is_made_anew(damage, tmp_path):
    make = Maker()
    cached_arrays(tmp_path, 'name', {'seed': 0}, make)
    folder, = tmp_path.iterdir()
    damage(folder)
    again = cached_arrays(tmp_path, 'name', {'seed': 0}, make)
    assert make.times == 2 and again['x'][0] == 200
    assert cached_arrays(tmp_path, 'name', {'seed': 0}, make)['x'][0] == 200 and make.times == 2


def test_nothing_is_left_when_the_disk_is_full(tmp_path, monkeypatch):
    saved = np.save

    def save(path, array, **options):
        if path.name == 'y.npy':
            path.write_bytes(b'half')
            raise OSError(errno.ENOSPC, 'No space left on device')
        saved(path, array, **options)

    monkeypatch.setattr(np, 'save', save)
    with pytest.raises(OSError, match='No space left'):
        cached_arrays(tmp_path, 'name', {'seed': 0}, Maker())
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    assert cached_arrays(tmp_path, 'name', {'seed': 0}, Maker())['x'][0] == 100
