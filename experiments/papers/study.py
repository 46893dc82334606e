"""The scale, the results and the shared runs of a study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import lightning as L
from filelock import FileLock
from matplotlib.figure import Figure

from experiments import train
from experiments.modules import Training
from experiments.runs.config_file import built
from experiments.runs.figures import report_figure
from experiments.runs.load_run import load_run
from experiments.runs.once import train_once
from experiments.runs.tables import report
from graphattn.utils.files import check_folder
from graphattn.utils.reading import read_yaml

ScaleName = Literal['smoke', 'small', 'paper']


@dataclass(frozen=True)
class Study:
    """A study that repeats results of a paper, at one of several scales.

    ``out/scale/name`` contains its results, and ``out/scale/runs`` contains its runs.

    Args:
        name (str): Name of the study.
        scale (str): ``'smoke'`` is a quick test, ``'small'`` takes minutes on two cores, and
            ``'paper'`` has the paper's sizes. Each study documents other differences.
        out (Path): The folder of all studies. Studies share runs.

    Raises:
        ValueError: The folder is not writable.
    """

    name: str
    scale: ScaleName
    out: Path

    def __post_init__(self):
        check_folder('out', self.folder)

    @property
    def folder(self) -> Path:
        """Return the folder for the results of this study."""
        return self.out / self.scale / self.name

    @property
    def cache(self) -> tuple[str, str]:
        """Return the options that make a run cache its data in a folder of this scale."""
        return '--data.init_args.cache', str(self.out / self.scale / 'cache')

    def trained(self, run: str, *options: str) -> Path:
        """Run ``experiments.train fit`` with some options once, and return the folder of the run.

        If a run with the same options is finished, it is reused. If it was killed, it is resumed.
        Studies may run concurrently: a study waits for a run that another study is training.

        Args:
            run (str): Name of the run's folder.
            *options: Command-line options. Configs are compared by content.

        Returns:
            The run's folder.

        Raises:
            ValueError: The folder contains a run with other options.
        """
        folder = self.out / self.scale / 'runs' / run
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{folder}.lock'):
            self._train(folder, options)
        return folder

    def _train(self, folder: Path, options: tuple[str, ...]) -> None:
        train_once(train.main, folder, options, f'\n{self.name}: {folder.name}')

    def made(self, name: str, build: Callable[[Path], object]) -> Path:
        """Return a folder that all studies of a scale share, after building it once.

        Args:
            name (str): Name of the folder.
            build (Callable): A function that builds the folder, called if it is missing. It must
                leave the folder complete or absent.
        """
        folder = self.out / self.scale / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{folder}.lock'):
            if not folder.exists():
                build(folder)
        return folder

    def report(self, rows: list[dict], figure: Figure, about: str = '', **others: Figure) -> None:
        """Print the rows of a table and a description, and write the rows and the figure to the
        study's folder.

        Further figures, ``others``, are written to files of their names.

        Args:
            rows: Rows of the table.
            figure: The main figure.
            about: Description of the data.
        """
        if about:
            print(f'\n{about}')
        report(rows, 'table', self.folder)
        for name, drawn in {'figure': figure, **others}.items():
            report_figure(drawn, name, self.folder)


def restored(run: Path) -> tuple[Training, L.LightningDataModule, L.Trainer]:
    """Load a finished run. Return its module, its data, and a trainer with the settings of its
    test."""
    trained = load_run(run)
    trainer = L.Trainer(
        default_root_dir=run, limit_test_batches=trained.config['trainer']['limit_test_batches'],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False)
    return trained.module, trained.data, trainer


def data_of(run: Path) -> L.LightningDataModule:
    """Return the data module that a finished run was trained on."""
    return built(read_yaml(run / 'config.yaml'), data=L.LightningDataModule).data
