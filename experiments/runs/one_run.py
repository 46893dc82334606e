"""A folder holds one run of one process: the rules to begin it and to go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from lightning.pytorch.utilities import rank_zero_only

from experiments.runs.checkpoints import LAST, PREVIOUS
from experiments.runs.inputs import flat, inputs_of
from experiments.runs.summary import NAME as SUMMARY
from experiments.runs.summary import read_summary
from graphattn.utils.reading import read_yaml

CONFIG = 'config.yaml'
WHAT_IT_IS = 'seed_everything', 'model', 'data'  # of a config; the trainer may be another one
FREE = {'num_workers', 'cache'}  # options of data that change no number


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder; of the processes of a run, the first one does.

    The folder is made for the lock, and removed afterwards where nothing else came into it.

    Raises:
        ValueError: Another run is at work there.
    """
    if rank_zero_only.rank != 0:
        yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / '.lock'
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ValueError(f"'trainer.default_root_dir' must be a folder where no other run is at "
                         f"work (got {folder}); wait for that one, or choose another folder"
                         ) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
        for empty in made:
            with suppress(OSError):
                empty.rmdir()


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run in the folder has got as far as to a checkpoint."""
    return any((folder / 'checkpoints' / name).exists() for name in (LAST, PREVIOUS))


def is_finished(folder: Path, config: str) -> bool:
    """Check that a folder is free, or holds the run of a config, and return whether it is done.

    Args:
        folder (Path): Of the run.
        config (str): What its config.yaml would say.

    Raises:
        ValueError: It holds something else, or data have changed since.
    """
    path, summary = folder / CONFIG, folder / SUMMARY
    if not path.exists():
        if summary.exists():
            raise ValueError(f"'trainer.default_root_dir' holds other results, {summary} of "
                             f"several seeds or of a test; choose another folder")
        return False
    if path.read_text(encoding='utf-8') != config:
        other = _difference(flat(read_yaml(path), ''), flat(yaml.safe_load(config), ''))
        raise ValueError(f"'trainer.default_root_dir' holds another run: {path} differs from "
                         f"this one's config{other}; choose another folder or delete that one")
    if not summary.exists():
        return False
    check_inputs(read_summary(folder).get('inputs', {}), yaml.safe_load(config), folder)
    return True


def check_inputs(before: dict[str, str], config: dict[str, Any], folder: Path) -> None:
    """Check that the files that a run reads are those that it was trained on.

    Raises:
        ValueError: One has changed.
    """
    if (name := changed_input(before, config)) is not None:
        raise ValueError(f"{name!r} has changed since the run in {folder} was trained: what it "
                         f"names is not the same data; put them back or choose another folder")


def changed_input(before: dict[str, str], config: dict[str, Any]) -> str | None:
    """Return the first option that names other data than before, if any; what is gone has not
    changed."""
    now = inputs_of(config)
    return next((name for name in before if now.get(name, before[name]) != before[name]), None)


def identity(config: str) -> dict[str, Any]:
    """Return what a run is, for its checkpoints: its options but those of the trainer, and digests
    of the files that it reads."""
    plain = yaml.safe_load(config)
    options = {name: value for part in WHAT_IT_IS
               for name, value in flat(plain.get(part), part).items()}
    return {'options': options, 'inputs': inputs_of(plain)}


def check_goes_on(checkpoint: Path, state: dict[str, Any], mine: dict[str, Any],
                  limits: Mapping[str, int | None]) -> None:
    """Check that a checkpoint is of the same run, whose trainer alone may be another one.

    Args:
        checkpoint (Path): To go on from.
        state (dict): What it holds.
        mine (dict): The :func:`identity` of the run that goes on.
        limits (dict): Its ``max_epochs`` and ``max_steps``.

    Raises:
        ValueError: Another model, seed or data would be mixed with those of the checkpoint, or
            passed over; or it has been trained for longer.
    """
    for name, least in (('max_epochs', state['epoch'] + 1), ('max_steps', state['global_step'])):
        if limits.get(name) is not None and 0 <= limits[name] < least:
            raise ValueError(f"'trainer.{name}' must be at least {least}, as {checkpoint} has been "
                             f"trained so far (got {limits[name]})")
    saved = identity_in(state)
    if saved is None:  # of an earlier version
        return
    for name, digest in saved['inputs'].items():
        if mine['inputs'].get(name, digest) != digest:
            raise ValueError(f"{name!r} has changed since {checkpoint} was written: what it names "
                             f"is not the same data; put them back or begin another run")
    free = FREE.union(*(set(one['inputs']) for one in (saved, mine)))
    theirs, ours = ({name: value for name, value in one['options'].items()
                     if name not in free and name.split('.')[-1] not in FREE}
                    for one in (saved, mine))
    if theirs != ours:
        name = next(name for name in {**theirs, **ours}
                    if name not in theirs or name not in ours or theirs[name] != ours[name])
        raise ValueError(f"{name!r} must be {theirs.get(name)!r} as in the run that goes on from "
                         f"{checkpoint} (got {ours.get(name)!r}); only options of the trainer may "
                         f"change, for others begin another run")


def identity_in(checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """Return what :func:`identity` gave to the run of a checkpoint, if that is known."""
    return checkpoint.get('callbacks', {}).get('RunFolder', {}).get('identity')


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Name the first option that differs, in brackets."""
    for name in {**theirs, **ours}:
        if theirs.get(name) != ours.get(name):
            return (f" ({name.removeprefix('.')} is {theirs.get(name)!r} there and "
                    f"{ours.get(name)!r} here)")
    return ''
