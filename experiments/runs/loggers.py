"""Lightning's loggers by name. They write below the run's folder, and never to a network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

LoggerName = Literal['csv', 'tensorboard', 'wandb']
NEEDS = {'tensorboard': 'tensorboard', 'wandb': 'wandb'}


def new_logger(name: LoggerName, folder: Path, *, is_resumed: bool) -> Logger:
    """Return a logger that writes into ``folder/name``, or a subfolder ``version_N`` of a resumed
    run, because CSVLogger overwrites its file."""
    package = NEEDS.get(name)
    if package is not None and find_spec(package) is None:
        raise ImportError(f"'logger' {name!r} requires a package that is not installed: pip "
                          f"install {package}")
    if name == 'csv':
        return CSVLogger(folder, name, version=None if is_resumed else '')
    if name == 'tensorboard':
        return TensorBoardLogger(folder, name, version='')
    # without this folder, W&B writes to the temporary directory
    folder.mkdir(parents=True, exist_ok=True)
    return WandbLogger(name=folder.name, save_dir=folder, project='graphattn', offline=True)


def close(logger: Logger | None) -> None:
    """Close the log of a run, because the next run of this process would append to it."""
    if isinstance(logger, WandbLogger):
        logger.experiment.finish()
