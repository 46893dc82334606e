"""Trainings that are skipped if they are finished."""

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
    """Train into a folder, unless finished, or resume with the options of ``options.json``."""
    said = json.dumps([_said(option) for option in options], indent=1)
    record = folder / 'options.json'
    has_begun = (folder / CONFIG).exists()
    if has_begun and not (record.exists() and record.read_text(encoding='utf-8') == said):
        raise ValueError(f"{folder} must be a new folder, or contain a run with the same options "
                         f"(got other options in {record.name}); choose another folder, or delete "
                         f"{folder}")
    if has_begun and (folder / SUMMARY).exists():
        check_inputs(read_summary(folder).get('inputs', {}), read_yaml(folder / CONFIG), folder)
        return
    if not has_begun:
        write_whole(record, lambda path: path.write_text(said, encoding='utf-8'))
    print(announcement)
    resume = ['--ckpt_path', str(folder / 'checkpoints' / LAST)] * has_checkpoint(folder)
    train(['fit', *options, '--trainer.default_root_dir', str(folder), *resume])


def _said(option: str) -> str:
    """Return the content of the config file that an option names, and other options unchanged."""
    path = Path(option.partition('=')[2] if option.startswith('--') else option)
    return path.read_text(encoding='utf-8') if path.suffix in ENDINGS and path.is_file() else option
