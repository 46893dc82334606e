"""A training that is done once, however often it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.runs.checkpoints import LAST
from experiments.runs.one_run import CONFIG, check_inputs, has_checkpoint
from experiments.runs.summary import NAME as SUMMARY
from experiments.runs.summary import read_summary
from graphattn.utils.files import write_whole
from graphattn.utils.reading import read_yaml

ENDINGS = {'.yaml', '.yml'}


def train_once(train: Callable[[list[str]], None], folder: Path, options: Sequence[str],
               announcement: str) -> None:
    """Train into a folder unless that is done; a training that was killed is resumed.

    The folder gets ``options.json``, by which a training of other options is told apart.

    Args:
        train (Callable): :func:`experiments.train.main`.
        folder (Path): Of the run.
        options (list of str): Of ``fit``; configs are compared by what they say.
        announcement (str): What is printed before a training.

    Raises:
        ValueError: The folder holds a run of other options, or of data that have changed since.
    """
    said = json.dumps([_said(option) for option in options], indent=1)
    record = folder / 'options.json'
    has_begun = (folder / CONFIG).exists()
    if has_begun and not (record.exists() and record.read_text(encoding='utf-8') == said):
        raise ValueError(f'{folder} holds a run of other options, see {record.name} there; choose '
                         f'another folder or delete that one')
    if has_begun and (folder / SUMMARY).exists():
        check_inputs(read_summary(folder).get('inputs', {}), read_yaml(folder / CONFIG), folder)
        return
    if not has_begun:
        write_whole(record, lambda path: path.write_text(said, encoding='utf-8'))
    print(announcement)
    resume = ['--ckpt_path', str(folder / 'checkpoints' / LAST)] * has_checkpoint(folder)
    train(['fit', *options, '--trainer.default_root_dir', str(folder), *resume])


def _said(option: str) -> str:
    """Return the content of the config that an option names, after ``--config=`` too, or the
    option."""
    path = Path(option.partition('=')[2] if option.startswith('--') else option)
    return path.read_text(encoding='utf-8') if path.suffix in ENDINGS and path.is_file() else option
