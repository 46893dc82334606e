"""Crash-safe checkpoints: at any time, at least one is intact.

A checkpoint is a zip file with its SHA-256 as the comment at its end, so that ``torch.load`` can
read it too. The checksums of zip files do not suffice. They do not include the directory, where one
flipped bit can hide a tensor, and ``torch.load`` does not check them.
"""

import hashlib
import io
import os
import stat
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from graphattn.utils.building import check_finite
from graphattn.utils.reading import load_tensors
from graphattn.utils.schema import check_schema

LAST, PREVIOUS, BEST = 'last.ckpt', 'previous.ckpt', 'best.ckpt'
DIGEST_SIZE = 64
COUNT, METRICS = range(2**63), {str: object}
OF_RUN_FOLDER = {'history': [METRICS], 'evaluated?': METRICS, 'seconds': float,
                 'compile_seconds?': float,
                 'identity?': (None, {'options': {str: object}, 'inputs': {str: str}})}
SCHEMA = {'state_dict': {str: Tensor}, 'epoch?': COUNT, 'global_step?': COUNT,
          'callbacks?': {'RunFolder?': OF_RUN_FOLDER, str: dict}, str: object}
TRAINING_STATE = dict.fromkeys(('callbacks', 'epoch', 'global_step', 'loops', 'lr_schedulers',
                                'optimizer_states', 'pytorch-lightning_version'), object)


class DurableCheckpoints(TorchCheckpointIO):
    """Lightning plug-in that writes checkpoints safely: to a temporary file, which is read back and
    then renamed.

    The old ``last.ckpt`` becomes ``previous.ckpt``. At any time, at least one of the two is an
    intact checkpoint. The system's temporary directory is not used.
    """

    def __init__(self):
        self._steps: dict[Path, int | None] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path,
                        storage_options: Any | None = None) -> None:
        path = Path(path)
        # The name is fixed, so that killed runs leave at most one temporary file.
        temporary = path.with_name(f'.{path.name}.part')
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_checkpoint(checkpoint, temporary)
            read_checkpoint(temporary)
            # A checkpoint at the end of an epoch replaces a checkpoint of the same step.
            if path.name == LAST and self._step(path) not in (None, checkpoint['global_step']):
                path.replace(path.with_name(PREVIOUS))
            temporary.replace(path)
            _flush(path.parent)
        except OSError as error:
            raise OSError(error.errno, f'{error.strerror}; {what_is_kept(path.parent)}',
                          str(path)) from error
        finally:
            temporary.unlink(missing_ok=True)
        self._steps[path] = checkpoint['global_step']

    def load_checkpoint(self, path: str | Path, *_, **__) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def _step(self, path: Path) -> int | None:
        """Return the training step of a checkpoint file, or ``None`` if the file is damaged,
        missing, or a link."""
        if path not in self._steps:
            try:
                self._steps[path] = read_checkpoint(path)['global_step']
            except (OSError, ValueError):
                self._steps[path] = None
        return None if path.is_symlink() else self._steps[path]


class EpochCheckpoints(ModelCheckpoint):
    """Lightning's ModelCheckpoint, but for absolute paths, so that it works in a moved folder."""

    @property
    def state_key(self) -> str:
        # The key is that of ModelCheckpoint, which older checkpoints have.
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        best = self._here(state_dict['best_model_path'])  # empty before the first checkpoint
        if not best or Path(best).is_file():
            paths = 'best_model_path', 'kth_best_model_path', 'last_model_path'
            state_dict = {
                **state_dict, 'dirpath': self.dirpath,
                **{name: self._here(state_dict[name]) for name in paths},
                'best_k_models': {self._here(path): score
                                  for path, score in state_dict['best_k_models'].items()}}
        super().load_state_dict(state_dict)

    def _here(self, path: str) -> str:
        return path and str(Path(self.dirpath) / Path(path).name)


class StepCheckpoints(Checkpoint):
    """Write a checkpoint every ``every`` steps, except for the last of an epoch, which has one."""

    # If an evaluation follows the step, the checkpoint is written after the evaluation, because a
    # resumed run does not repeat it.

    def __init__(self, path: Path, every: int):
        self.path, self.every = path, every
        self.is_due, self.step = False, 0

    def on_train_start(self, trainer: L.Trainer, *_) -> None:
        self.step = trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, *_) -> None:
        before, self.step, loop = self.step, trainer.global_step, trainer.fit_loop
        # While gradients accumulate, the step is unchanged. A checkpoint would lose these
        # gradients.
        self.is_due = (self.step != before and self.step % self.every == 0
                       and not trainer.is_last_batch)
        if not loop.epoch_loop._should_check_val_fx(loop._data_fetcher):
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, *_) -> None:
        self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        if self.is_due:
            self.is_due = False
            trainer.save_checkpoint(self.path)


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint that :func:`read_checkpoint` can verify, and flush the file to disk."""
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    content = buffer.getbuffer()
    content[-2:] = DIGEST_SIZE.to_bytes(2, 'little')  # the length field of the zip comment
    path.unlink(missing_ok=True)
    with path.open('xb') as file:
        file.write(content)
        file.write(hashlib.sha256(content).hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint that :func:`write_checkpoint` wrote, onto the CPU."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError('not a file')  # a pipe or a device may be endless
    content = path.read_bytes()
    digest = hashlib.sha256(memoryview(content)[:-DIGEST_SIZE]).hexdigest()
    if digest.encode() != content[-DIGEST_SIZE:]:
        raise ValueError('the checksum is wrong: the file is damaged, or it is not a checkpoint '
                         'of experiments.train')
    try:
        checkpoint = load_tensors(io.BytesIO(content))
    except Exception as error:  # unpickling can raise many types of errors
        raise ValueError(str(error)) from error
    check_schema(checkpoint, SCHEMA, 'it is not a checkpoint of experiments.train')
    # Trainings write no others, and predictions of others are no numbers.
    check_finite(checkpoint['state_dict'], 'in this checkpoint')
    return checkpoint


def newest_in(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint in the folder ``checkpoints`` of a run, or ``None``."""
    paths = checkpoints / LAST, checkpoints / PREVIOUS
    return next((path for path in paths if path.is_file()), None)


def what_is_kept(checkpoints: Path) -> str:
    """Return a text that names the newest checkpoint in a folder, or says that there is none."""
    path = newest_in(checkpoints)
    return 'no checkpoint was written before' if path is None else f'{path} is kept'


def newest_good(path: Path) -> Path:
    """Return ``path``, or ``previous.ckpt`` if it is a damaged or missing ``last.ckpt``."""
    try:
        _check_resumable(path)
    except (OSError, ValueError) as error:
        previous = path.with_name(PREVIOUS)
        if path.name != LAST or not previous.exists():
            raise
        _check_resumable(previous)
        say(f'{path} cannot be read ({error}); resuming from {previous}')
        return previous
    return path


def _check_resumable(path: Path) -> None:
    check_schema(read_checkpoint(path), TRAINING_STATE | {str: object},
                 'training cannot be resumed from this file')


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@rank_zero_only
def say(line: str) -> None:
    """Print a line to standard error, in the first process of a run only."""
    print(line, file=sys.stderr)
