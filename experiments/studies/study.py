"""What every study shares: its scale, where its results go, and runs that are made once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock
from matplotlib.figure import Figure

from experiments import train
from experiments.tables import report
from graphattn._files import write_whole

ScaleName = Literal['smoke', 'small', 'paper']


@dataclass(frozen=True)
class Study:
    """A study at a scale: ``out/scale/name`` holds its results, ``out/scale/runs`` what it trains.

    Args:
        name (str): Name of the study.
        scale (str): ``'smoke'`` shows that it runs, ``'small'`` takes minutes on two cores,
            ``'paper'`` has the hyper-parameters of the paper.
        out (Path): Folder of all studies, which share their runs.
    """

    name: str
    scale: ScaleName
    out: Path

    @property
    def folder(self) -> Path:
        """Where the results of this study go."""
        return self.out / self.scale / self.name

    def trained(self, run: str, *options: str) -> Path:
        """Trains as ``experiments.train fit`` does with these options, once.

        A finished run of the same options is taken as it is, and one that was killed is resumed.
        Studies may run side by side: who needs a run that another one trains waits for it.

        Args:
            run (str): Name of the run's folder.
            *options: Of the command line; configs are compared by what they say.

        Returns:
            The run's folder.

        Raises:
            ValueError: The folder holds a run of other options.
        """
        folder = self.out / self.scale / 'runs' / run
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{folder}.lock'):
            self._train(folder, options)
        return folder

    def _train(self, folder: Path, options: tuple[str, ...]) -> None:
        said = json.dumps([Path(option).read_text() if option.endswith('.yaml') else option
                           for option in options], indent=1)
        record, checkpoint = folder / 'options.json', folder / 'checkpoints' / 'last.ckpt'
        has_begun = (folder / 'config.yaml').exists()
        if has_begun and record.exists() and record.read_text() != said:
            raise ValueError(f"'out' holds a run of other options: {record}; choose another "
                             f"folder or delete {folder}")
        write_whole(record, lambda path: path.write_text(said))
        if not (folder / 'summary.json').exists():
            print(f'\n{self.name}: {folder.name}')
            resume = ['--ckpt_path', str(checkpoint)] if checkpoint.exists() else []
            train.main(['fit', *options, '--trainer.default_root_dir', str(folder), *resume])

    def report(self, rows: list[dict], figure: Figure) -> None:
        """Prints the rows and writes them, with the figure, to the study's folder."""
        report(rows, 'table', self.folder)
        picture = self.folder / 'figure.png'
        write_whole(picture, lambda path: figure.savefig(path, dpi=110))
        print(f'drawn in {picture}')


def summary(run: Path) -> dict:
    """What a run says of itself in the end."""
    return json.loads((run / 'summary.json').read_text())
