"""Checkpoints: what of them survives damage, links and saving over and over."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments.runs.checkpoints import (
    LAST,
    PREVIOUS,
    TRAINING_STATE,
    DurableCheckpoints,
    newest_good,
    read_checkpoint,
    write_checkpoint,
)
from experiments.runs.finite import StayFinite
from experiments.runs.run_folder import RunFolder


def state(step):
    return {**dict.fromkeys(TRAINING_STATE, {}), 'epoch': 0, 'global_step': step,
            'state_dict': {'weight': torch.full((3,), float(step)), 'bias': torch.ones(2)}}


def steps(folder):
    return {path.name: read_checkpoint(path)['global_step'] for path in folder.iterdir()}


def save(folder, *numbers):
    checkpoints = DurableCheckpoints()
    for step in numbers:
        checkpoints.save_checkpoint(state(step), folder / LAST)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    path = tmp_path / 'any.ckpt'
    write_checkpoint(state(7), path)
    for read in (read_checkpoint, DurableCheckpoints().load_checkpoint,
                 lambda path: torch.load(path, weights_only=True)):
        checkpoint = read(path)
        assert checkpoint.keys() == state(7).keys() and checkpoint['global_step'] == 7
        assert torch.equal(checkpoint['state_dict']['weight'], torch.full((3,), 7.))


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path):
    path = tmp_path / LAST
    write_checkpoint(state(7), path)
    content = path.read_bytes()
    flips = range(0, len(content), 31)
    damaged = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1:] for i in flips]
    damaged += [content[:size] for size in range(0, len(content), 301)]
    damaged += [content[:-1], content + b'x']
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match='the checksum is wrong'):
            read_checkpoint(path)


@pytest.mark.parametrize('runs, expected', [
    ([[1]], {LAST: 1}),
    ([[1, 2, 5]], {LAST: 5, PREVIOUS: 2}),
    ([[1, 2, 2]], {LAST: 2, PREVIOUS: 1}),  # the last step of an epoch and its end
    ([[1, 2], [2]], {LAST: 2, PREVIOUS: 1}),
    ([[1, 2], [3]], {LAST: 3, PREVIOUS: 2}),
    ([[7, 8], [1]], {LAST: 1, PREVIOUS: 8}),  # anew in the same folder
])
def test_rotation(runs, expected, tmp_path):
    for numbers in runs:
        save(tmp_path, *numbers)
    assert steps(tmp_path) == expected


def test_a_damaged_checkpoint_does_not_drive_out_a_good_one(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / LAST).write_bytes(b'')
    save(tmp_path, 3)
    assert steps(tmp_path) == {LAST: 3, PREVIOUS: 1}


@pytest.mark.parametrize('target', ['elsewhere/other.ckpt', PREVIOUS, 'nowhere'])
def test_a_link_is_replaced_and_not_followed(target, tmp_path):
    folder, target = tmp_path / 'checkpoints', tmp_path / 'checkpoints' / target
    target.parent.mkdir(parents=True)
    if target.name != 'nowhere':
        write_checkpoint(state(9), target)
    for name in (LAST, f'.{LAST}.part'):
        (folder / name).symlink_to(target)
    save(folder, 1)
    assert not (folder / LAST).is_symlink() and read_checkpoint(folder / LAST)['global_step'] == 1
    assert not target.exists() or read_checkpoint(target)['global_step'] == 9


@pytest.mark.parametrize('damage', [
    lambda path: path.unlink(), lambda path: path.write_bytes(b''),
    lambda path: write_checkpoint({'state_dict': {}}, path)], ids=['missing', 'empty', 'weights'])
def test_the_newest_good_one(damage, tmp_path, capsys):
    save(tmp_path, 1, 2)
    assert newest_good(tmp_path / LAST) == tmp_path / LAST
    assert capsys.readouterr().err == ''
    damage(tmp_path / LAST)
    assert newest_good(tmp_path / LAST) == tmp_path / PREVIOUS
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith(str(tmp_path / LAST)) and line.endswith(str(tmp_path / PREVIOUS))
    damage(tmp_path / PREVIOUS)
    with pytest.raises((OSError, ValueError)):
        newest_good(tmp_path / LAST)


def test_nothing_is_left_of_what_cannot_be_written(tmp_path):
    save(tmp_path, 1)
    (tmp_path / 'folder' / LAST).mkdir(parents=True)
    with pytest.raises(OSError, match=f"no checkpoint was written before: .*{LAST}'"):
        save(tmp_path / 'folder', 2)
    (tmp_path / 'folder' / LAST).rmdir()
    (tmp_path / 'folder').rmdir()
    with pytest.raises(ValueError):  # what cannot be read again
        DurableCheckpoints().save_checkpoint({**state(2), 'callbacks': object}, tmp_path / LAST)
    assert steps(tmp_path) == {LAST: 1}


def full_disk(trainer, monkeypatch):
    def fail(*_):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr('experiments.runs.checkpoints.write_checkpoint', fail)
    with pytest.raises(OSError) as raised:
        save(Path(trainer.default_root_dir) / 'checkpoints', 3)
    return raised.value.strerror  # the path after it is of the file that was not written


def loss_that_is_not_finite(trainer, _):
    with pytest.raises(ValueError) as raised:
        StayFinite().on_train_batch_end(trainer, None, {'loss': torch.tensor(math.nan)})
    return str(raised.value)


def weights_that_are_not_finite(trainer, _):
    with pytest.raises(ValueError) as raised:
        StayFinite().on_save_checkpoint(trainer, None, {'state_dict': {'w': torch.tensor([1e999])}})
    return str(raised.value)


def interrupt(trainer, _, capsys):
    run = RunFolder()
    run.on_fit_start(trainer, None)
    run.on_exception(trainer, None, KeyboardInterrupt())
    return capsys.readouterr().err


@pytest.mark.parametrize('kept', [(), (PREVIOUS,), (LAST, PREVIOUS)])
@pytest.mark.parametrize('end', [full_disk, loss_that_is_not_finite, weights_that_are_not_finite,
                                 interrupt])
def test_a_message_names_the_newest_checkpoint_that_exists(end, kept, tmp_path, monkeypatch,
                                                           capsys):
    folder = tmp_path / 'checkpoints'
    if kept:
        folder.mkdir()
        for name in kept:
            write_checkpoint(state(1), folder / name)
    trainer = SimpleNamespace(default_root_dir=str(tmp_path), global_step=3, is_global_zero=True)
    said = end(trainer, monkeypatch, *[capsys] * (end is interrupt))
    assert re.findall(r'\S+\.ckpt', said) == [str(folder / name) for name in kept[:1]]
    assert 'kept' not in said or kept
