"""A run that was trained, for use in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
from jsonargparse import ArgumentParser

from experiments.runs.checkpoints import BEST, LAST, read_checkpoint
from graphattn._reading import read_yaml


class Run(NamedTuple):
    """What a run's folder holds.

    Attributes:
        objective (LightningModule): What was trained, with its weights, in evaluation mode; its
            ``model`` takes tokens and ``ptr``.
        data (LightningDataModule): What it was trained on.
        config (dict): Every option, resolved.
    """

    objective: L.LightningModule
    data: L.LightningDataModule
    config: dict[str, Any]


def load_run(folder: str | Path) -> Run:
    """What ``experiments.train`` left in a folder, as it was tested: with the last weights, or the
    best ones if ``select_on`` chose them.

    Args:
        folder: ``--trainer.default_root_dir`` of the run.

    Raises:
        OSError: A file of it is missing.
        ValueError: A file of it is damaged, or of another version.

    Example::

        from experiments.runs.load_run import load_run

        objective, data, config = load_run('runs/digits/sbm')
        data.prepare_data()
        data.setup('test')
        tokens, ptr, label = next(iter(data.test_dataloader()))
        guess = objective.model(tokens, ptr).argmax(dim=1)
    """
    folder = Path(folder)
    config = read_yaml(folder / 'config.yaml')
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument('--model', type=L.LightningModule)
    parser.add_argument('--data', type=L.LightningDataModule)
    tested = LAST if config['select_on'] is None else BEST
    checkpoint = read_checkpoint(folder / 'checkpoints' / tested)
    made = parser.instantiate(parser.parse_object({name: config[name]
                                                   for name in ('model', 'data')}))
    try:
        made.model.load_state_dict(checkpoint['state_dict'])
    except RuntimeError as error:
        raise ValueError(f"'folder' holds weights of another model than its config.yaml describes: "
                         f"{folder} ({error})") from error
    return Run(made.model.eval(), made.data, config)
