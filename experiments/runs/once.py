"""A training that is done once, however often it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.runs.checkpoints import LAST
from graphattn._files import write_whole


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
    said = json.dumps([Path(option.removeprefix('--config=')).read_text()
                       if option.endswith('.yaml') else option for option in options], indent=1)
    record, checkpoints = folder / 'options.json', folder / 'checkpoints'
    has_begun = (folder / 'config.yaml').exists()
    if has_begun and record.exists() and record.read_text() != said:
        raise ValueError(f'{folder} holds a run of other options, see {record.name} there; choose '
                         f'another folder or delete that one')
    write_whole(record, lambda path: path.write_text(said))
    if not (folder / 'summary.json').exists():
        print(announcement)
        resume = ['--ckpt_path', str(checkpoints / LAST)] if any(checkpoints.glob('*.ckpt')) else []
        train(['fit', *options, '--trainer.default_root_dir', str(folder), *resume])
