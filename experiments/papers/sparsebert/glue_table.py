"""Fine-tuning on GLUE tasks, and a row of the papers' tables, over all runs of the folder.

Other options are passed to ``experiments.train``.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from experiments.data.text.glue_files import TASKS
from experiments.modules.measures import BEST, LAST
from experiments.runs.summary import read_results
from experiments.runs.tables import report
from graphattn.utils.files import check_folder

# SparseBERT's Tables 1 and 3 average these nine columns, so MNLI counts twice.
COLUMNS = {'MNLI-m': ('MNLI', 'accuracy/dev_matched'),
           'MNLI-mm': ('MNLI', 'accuracy/dev_mismatched'),
           **{name: (name, f'{task.metric}/dev') for name, task in TASKS.items()
              if name != 'MNLI'}}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main(words: list[str]) -> None:
    parser = Parser(prog='graphattn study glue_table', description=__doc__, allow_abbrev=False)
    parser.add_argument('--config', required=True, help='config of the fine-tuning')
    parser.add_argument('--pretrained', required=True, help='checkpoint')
    parser.add_argument('--glue', type=Path, required=True, help='folder of GLUE, with a folder '
                                                                 'for each task')
    parser.add_argument('--tasks', nargs='*', choices=TASKS, default=list(TASKS), metavar='TASK',
                        help=f'tasks to train, some of {", ".join(TASKS)}; if omitted, all')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0], help='a run for each')
    parser.add_argument('--out', type=Path, required=True, help='folder of the runs')
    options, others = parser.parse_known_args(words)
    check_folder('out', options.out)
    missing = [task for task in options.tasks if not (options.glue / task).is_dir()]
    if missing:
        parser.error(f"'glue' must contain a folder for each task (got {options.glue}, without "
                     f"{', '.join(missing)})")
    for task in options.tasks:
        for seed in options.seeds:
            fine_tune(task, seed, options, others)
    rows = table(options.out)
    report(rows, 'table', options.out)
    missing = [column for column in COLUMNS if not all(column in row for row in rows)]
    if missing:
        print(f"The papers' averages are over {len(COLUMNS)} columns; some rows here lack "
              f'{", ".join(missing)}.')


def fine_tune(task: str, seed: int, options: argparse.Namespace, others: list[str]) -> None:
    command = [sys.executable, '-m', 'experiments.train', 'fit', '--config', options.config,
               '--seed_everything', str(seed),
               '--trainer.default_root_dir', str(options.out / f'seed{seed}' / task),
               '--model.init_args.pretrained', options.pretrained,
               '--model.init_args.task', task, '--data.init_args.task', task,
               '--data.init_args.path', str(options.glue / task), *others]
    print(f'{task}, seed {seed}', flush=True)
    if (status := subprocess.run(command).returncode) != 0:
        raise ChildProcessError(f"fine-tuning on {task} with seed {seed} failed (got exit status "
                                f"{status}); the output above says why")


def table(folder: Path) -> list[dict]:
    """Return the scores of each seed after its last and its best epoch, and their means."""
    rows = []
    for epoch in (LAST, BEST):
        runs = {run.name: row for run in sorted(folder.glob('seed*')) if (row := _row(run, epoch))}
        if len(runs) > 1:
            runs['mean'] = {
                column: statistics.mean(row[column] for row in runs.values() if column in row)
                for column in COLUMNS if any(column in row for row in runs.values())}
        rows += [{'dev, after the': epoch, 'run': run, **row,
                  'average': statistics.mean(row.values())} for run, row in runs.items()]
    if not rows:
        raise ValueError(f"'out' must contain a finished run (got none in {folder})")
    return rows


def _row(folder: Path, epoch: str) -> dict[str, float]:
    reports = {path.parent.name: read_results(path) for path in folder.glob('*/dev.json')}
    return {column: 100 * reports[task][epoch][metric]
            for column, (task, metric) in COLUMNS.items() if task in reports}
