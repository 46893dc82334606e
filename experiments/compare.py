"""Comparison of trained runs: the options that differ, the metrics of the tests, and curves.

    graphattn compare runs/text runs/text_sbm --out comparison

A folder of ``--seeds`` counts as one run, with means and standard deviations over its seeds.
"""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.runs.command import run_or_exit
from experiments.runs.command_line import Parser
from experiments.runs.figures import compared_curves, report_figure
from experiments.runs.inputs import flat
from experiments.runs.one_run import CONFIG
from experiments.runs.summary import NAME as SUMMARY
from experiments.runs.summary import read_metrics, read_summary, spread
from experiments.runs.tables import report
from graphattn.utils.files import check_folder
from graphattn.utils.reading import read_yaml

COUNTS = 'tested_after_epoch', 'epochs', 'parameters'
OF_A_RUN = 'seed_everything', 'seeds', 'trainer.default_root_dir'  # options of no interest


class Compared(NamedTuple):
    """A run, or the runs of several seeds: options, summaries, and metrics by epoch."""

    name: str
    options: dict[str, Any]
    summaries: list[dict[str, Any]]
    histories: list[list[dict[str, float]]]


def compare(folders: Sequence[Path], out: Path) -> None:
    """Print the options and the metrics of the runs in some folders, and write both tables and a
    figure of the curves into the folder ``out``."""
    check_folder('out', out)
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    above = os.path.commonpath([path.parent for path in paths])
    runs = [read(path, os.path.relpath(path, above)) for path in paths]
    (out / 'options.csv').unlink(missing_ok=True)
    if differ := differences(runs):
        report(differ, 'options', out)
        print()
    report(metrics_of(runs), 'metrics', out)
    curves = compared_curves(
        {run.name: run.histories for run in runs},
        {run.name: [summary.get('tested_after_epoch') for summary in run.summaries]
         for run in runs})
    report_figure(curves, 'curves', out)


def read(folder: Path, name: str) -> Compared:
    folders = [folder] if (folder / CONFIG).exists() else sorted(
        path.parent for path in folder.glob(f'seed*/{CONFIG}'))
    if not folder.is_dir():
        raise FileNotFoundError(f"'runs' must be folders of runs (got {folder}, which does not "
                                f"exist)")
    if not folders:
        raise ValueError(f"'runs' must be folders of runs, with a {CONFIG}, or of --seeds (got "
                         f"{folder})")
    for path in folders:
        if not (path / SUMMARY).exists():
            raise ValueError(f"'runs' must be finished (got {path} without {SUMMARY}); repeat its "
                             f"graphattn train to finish it")
    return Compared(name, _options(folders[0]), [read_summary(path) for path in folders],
                    [read_metrics(path) for path in folders])


def differences(runs: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return a row for each option that is not the same in all runs."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    rows = [{'option': name.replace('.init_args', ''),
             **{run.name: str(run.options.get(name, '-')) for run in runs}} for name in names]
    return [row for row in rows if len({row[run.name] for run in runs}) > 1]


def metrics_of(runs: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return a row for each metric: means over the seeds, and standard deviations in columns
    ``sd RUN``."""
    numbers = {run.name: [_numbers(summary) for summary in run.summaries] for run in runs}
    names = dict.fromkeys(name for some in numbers.values() for one in some for name in one)
    rows = [{'metric': 'runs', **{run.name: len(run.summaries) for run in runs}}]
    for name in names:
        row: dict[str, Any] = {'metric': name}
        for run, some in numbers.items():
            values = [one[name] for one in some if name in one]
            row[run] = statistics.mean(values) if values else None
            if len(some) > 1:
                row[f'sd {run}'] = spread(values)
        rows.append(row)
    return rows


def _numbers(summary: dict[str, Any]) -> dict[str, float]:
    density = list(summary.get('density', {}).values())
    return {**{name: value for name, value in summary.items() if isinstance(value, float)},
            **({'density': statistics.mean(density)} if density else {}),
            **{name: summary[name] for name in COUNTS if name in summary}}


def _options(folder: Path) -> dict[str, Any]:
    options = flat(read_yaml(folder / CONFIG), '')
    return {name.removeprefix('.'): value for name, value in options.items()
            if name.removeprefix('.') not in OF_A_RUN}


def main() -> None:
    parser = Parser(description=__doc__.split('\n\n')[0], exit_on_error=False)
    parser.add_argument('runs', nargs='+', metavar='RUN', type=Path,
                        help='The folder of a run, or of the runs of --seeds.')
    parser.add_argument('--out', type=Path, default=Path('comparison'),
                        help='The folder for options.csv, metrics.csv and curves.png '
                             '(default: %(default)s).')
    arguments = parser.parse_args()
    compare(arguments.runs, arguments.out)


if __name__ == '__main__':
    run_or_exit(main)
