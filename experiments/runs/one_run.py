"""The rules by which a run starts and resumes in a folder. A folder contains one run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from lightning.pytorch.utilities import rank_zero_only

from experiments.runs.checkpoints import newest_in
from experiments.runs.inputs import flat, inputs_of
from experiments.runs.summary import NAME as SUMMARY
from experiments.runs.summary import read_summary
from graphattn.utils.reading import read_yaml

CONFIG = 'config.yaml'
# entries of a config that must not change; the trainer may differ
WHAT_IT_IS = 'seed_everything', 'model', 'data'
FREE = {'num_workers', 'cache'}  # data options that do not change results


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Return a context in which the first process of a run locks a folder, created for it, against
    other runs."""
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
        raise ValueError(f"'trainer.default_root_dir' must not be in use by another run (got "
                         f"{folder}); wait until the other run ends, or choose another folder"
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
    return newest_in(folder / 'checkpoints') is not None


def is_finished(folder: Path, config: str) -> bool:
    """Return whether the run with a config is finished in a folder, after checking that the folder
    contains no other run."""
    path, summary = folder / CONFIG, folder / SUMMARY
    if not path.exists():
        if summary.exists():
            raise ValueError(f"'trainer.default_root_dir' must not contain other results (got "
                             f"{summary} of several seeds or of a test); choose another folder")
        return False
    if read_yaml(path) != yaml.safe_load(config):
        other = _difference(flat(read_yaml(path), ''), flat(yaml.safe_load(config), ''))
        raise ValueError(f"'trainer.default_root_dir' must not contain another run (got {path}, "
                         f"which differs from the config of this run{other}); choose another "
                         f"folder, or delete the other run")
    if not summary.exists():
        return False
    check_inputs(read_summary(folder).get('inputs', {}), yaml.safe_load(config), folder)
    return True


def check_inputs(before: dict[str, str], config: dict[str, Any], folder: Path) -> None:
    """Raise an error if the input files of a run have changed since its training."""
    if (name := changed_input(before, config)) is not None:
        raise ValueError(f"the data of {name!r} must be unchanged since the training of the run in "
                         f"{folder}; restore the data, or choose another folder")


def changed_input(before: dict[str, str], config: dict[str, Any]) -> str | None:
    """Return the name of the first option whose existing files have changed, or ``None``."""
    now = inputs_of(config)
    return next((name for name in before if now.get(name, before[name]) != before[name]), None)


def identity(config: str) -> dict[str, Any]:
    """Return options and digests of input files, but of no trainer, that resumed runs share."""
    plain = yaml.safe_load(config)
    options = {name: value for part in WHAT_IT_IS
               for name, value in flat(plain.get(part), part).items()}
    return {'options': options, 'inputs': inputs_of(plain)}


def check_goes_on(checkpoint: Path, state: dict[str, Any], mine: dict[str, Any],
                  limits: Mapping[str, int | None]) -> None:
    """Raise an error unless a run can continue from a checkpoint: only options of the trainer may
    differ."""
    for name, least in (('max_epochs', state['epoch'] + 1), ('max_steps', state['global_step'])):
        if limits.get(name) is not None and 0 <= limits[name] < least:
            raise ValueError(f"'trainer.{name}' must be at least {least}, because {checkpoint} has "
                             f"already reached this number (got {limits[name]})")
    saved = identity_in(state)
    if saved is None:  # of an earlier version
        return
    for name, digest in saved['inputs'].items():
        if mine['inputs'].get(name, digest) != digest:
            raise ValueError(f"the data of {name!r} must be unchanged since {checkpoint} was "
                             f"written; restore the data, or start a new run in another folder")
    free = FREE.union(*(set(one['inputs']) for one in (saved, mine)))
    theirs, ours = ({name: value for name, value in one['options'].items()
                     if name not in free and name.split('.')[-1] not in FREE}
                    for one in (saved, mine))
    if theirs != ours:
        name = next(name for name in {**theirs, **ours}
                    if name not in theirs or name not in ours or theirs[name] != ours[name])
        raise ValueError(f"{name!r} must be {theirs.get(name)!r}, as in {checkpoint} (got "
                         f"{ours.get(name)!r}), because a resumed run may change only options of "
                         f"the trainer; to change {name!r}, start a new run")


def identity_in(checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """Return the :func:`identity` in a checkpoint, or ``None`` if the checkpoint has none."""
    return checkpoint.get('callbacks', {}).get('RunFolder', {}).get('identity')


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Return a text in brackets that describes the first option in which two runs differ."""
    for name in {**theirs, **ours}:
        if theirs.get(name) != ours.get(name):
            return (f" ({name.removeprefix('.')} is {theirs.get(name)!r} there and "
                    f"{ours.get(name)!r} here)")
    return ''
