"""A training that is done once, however often it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.runs.checkpoints import LAST, PREVIOUS
from graphattn._files import write_whole

CONFIGS = {'.yaml', '.yml'}


def train_once(train: Callable[[list[str]], None], folder: Path, options: Sequence[str],
               announcement: str) -> None:
    """Trains into a folder unless that is done; a training that was killed is resumed.

    The folder gets ``options.json``, by which a training of other options is told apart.

    Args:
        train (Callable): :func:`experiments.train.main`.
        folder (Path): Of the run.
        options (list of str): Of ``fit``; configs are compared by what they say.
        announcement (str): What is printed before a training.

    Raises:
        ValueError: The folder holds a run of other options.
    """
    said = json.dumps([_said(option) for option in options], indent=1)
    record, checkpoints = folder / 'options.json', folder / 'checkpoints'
    has_begun = (folder / 'config.yaml').exists()
    if has_begun and record.exists() and record.read_text(encoding='utf-8') != said:
        raise ValueError(f'{folder} holds a run of other options, see {record.name} there; choose '
                         f'another folder or delete that one')
    write_whole(record, lambda path: path.write_text(said, encoding='utf-8'))
    if not (folder / 'summary.json').exists():
        print(announcement)
        has_checkpoint = any((checkpoints / name).exists() for name in (LAST, PREVIOUS))
        resume = ['--ckpt_path', str(checkpoints / LAST)] if has_checkpoint else []
        train(['fit', *options, '--trainer.default_root_dir', str(folder), *resume])


def _said(option: str) -> str:
    """What is in the config that an option names, after ``--config=`` too; or the option."""
    path = Path(option.partition('=')[2] if option.startswith('--') else option)
    return path.read_text(encoding='utf-8') if path.suffix in CONFIGS and path.is_file() else option
