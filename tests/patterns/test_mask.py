"""Files of masks. What a mask builds is in the contract."""

from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch

from graphattn.graphs.pair_layout import DiagonalLayout, FreeLayout
from graphattn.patterns import Mask, SlidingWindow, load_masks, save_masks


@pytest.mark.parametrize('layout', [FreeLayout(7), FreeLayout(7, border=True),
                                    DiagonalLayout(7), DiagonalLayout(7, border=False)], ids=repr)
def test_files_give_back_what_was_written(tmp_path, layout):
    path = tmp_path / 'new_folder' / 'masks.npz'
    masks = tuple(Mask(layout, torch.rand(layout.num_values) < 0.5) for _ in range(3))
    save_masks(path, masks)
    assert load_masks(path) == masks
    save_masks(str(path), list(masks[::-1]))
    assert load_masks(str(path)) == masks[::-1]
    assert [file.name for file in path.parent.iterdir()] == ['masks.npz']


@pytest.mark.parametrize('name, masks, error, match', [
    ('masks.npy', [Mask(FreeLayout(1), '1')], ValueError, r"'path' must end.*.npz \(got '.*npy'"),
    ('masks.npz', [], ValueError, "'masks' must.*head, .*got 0 masks"),
    ('masks.npz', [Mask(FreeLayout(1), '1'), Mask(DiagonalLayout(1, False), '1')], ValueError,
     "same layout .got 2 masks.*2 layouts"),
    ('masks.npz', [SlidingWindow(1)], TypeError, "'masks' must .* Masks .got SlidingWindow"),
])
def test_masks_that_cannot_be_saved_are_refused(tmp_path, name, masks, error, match):
    with pytest.raises(error, match=match):
        save_masks(tmp_path / name, masks)
    assert not list(tmp_path.iterdir())


def whole(**changes):
    return dict(layout='FreeLayout', size=2, border=False, values=np.ones((2, 4), bool)) | changes


@pytest.mark.parametrize('content', [
    whole(layout='Layout'), whole(size=3), whole(size=2.5), whole(values=np.ones((2, 4))),
    whole(values=np.ones(4, bool)), whole(values=np.ones((0, 4), bool)), whole(border='no'),
    whole(values=np.array([None])), whole(size=[1, 2]), {'values': np.ones((2, 4), bool)},
], ids=str)
def test_files_that_hold_something_else(tmp_path, content):
    np.savez(tmp_path / 'masks.npz', **content)
    with pytest.raises(ValueError, match="'path' must be a file that save_masks wrote"):
        load_masks(tmp_path / 'masks.npz')


def write_archive(path, arrays):
    """Headers of arrays, and as many zeros as are given, whatever the headers say."""
    with ZipFile(path, 'w', ZIP_DEFLATED) as archive:
        for name, (header, num_bytes) in arrays.items():
            with archive.open(f'{name}.npy', 'w') as file:
                np.lib.format.write_array_header_1_0(file, {'fortran_order': False, **header})
                for _ in range(num_bytes >> 20):
                    file.write(bytes(2**20))
                file.write(bytes(num_bytes % 2**20))


@pytest.mark.slow
@pytest.mark.parametrize('descr, shape, num_bytes, match', [
    ('|b1', (24, 4), 96 * 2**20, r'100,6.* bytes when decompressed'),
    ('|b1', (2**50, 4), 0, "'path' must be a file that save_masks wrote"),
    ('|b1', (2**80, 4), 0, "'path' must be a file that save_masks wrote"),
    ('|O', (2, 4), 2**20, "'path' must be a file that save_masks wrote"),
])
def test_files_with_wrong_headers_are_refused(tmp_path, descr, shape, num_bytes,
                                              match):
    path = tmp_path / 'masks.npz'
    arrays = {name: ({'descr': '|b1', 'shape': ()}, 1) for name in ('layout', 'size', 'border')}
    write_archive(path, arrays | {'values': ({'descr': descr, 'shape': shape}, num_bytes)})
    with pytest.raises(ValueError, match=match) as error:
        load_masks(path)
    assert str(path) in str(error.value)
