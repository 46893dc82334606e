"""Predictions on GLUE's test sets, for runs of ``glue_table``, as files for GLUE's server."""

import csv
from pathlib import Path

from experiments.data.text.glue_files import TASKS
from experiments.papers.sparsebert.glue_table import Parser
from experiments.predict import predictions
from experiments.runs.load_run import Run, load_run
from graphattn.utils.files import check_folder, write_whole

HIGHEST = 5.  # of STS-B's scores
SERVER_NAMES = {'test_matched': 'MNLI-m', 'test_mismatched': 'MNLI-mm'}


def main(words: list[str]) -> None:
    parser = Parser(prog='graphattn study glue_submission', description=__doc__.splitlines()[0])
    parser.add_argument('--runs', type=Path, required=True, help='folder with a run for each task')
    parser.add_argument('--glue', type=Path, required=True, help='folder of GLUE')
    parser.add_argument('--out', type=Path, required=True, help='folder of the predictions')
    submit(**vars(parser.parse_args(words)))


def submit(runs: Path, glue: Path, out: Path) -> None:
    check_folder('out', out)
    trained = [task for task in TASKS if (runs / task / 'summary.json').exists()]
    if not trained:
        raise ValueError(f"'runs' must contain finished runs in folders named {', '.join(TASKS)} "
                         f"(got {runs}, without such a folder)")
    for task in trained:
        run = load_run(runs / task)
        for name in TASKS[task].test:
            rows = predicted(run, glue / task / f'{name}.tsv')
            path = out / f'{SERVER_NAMES.get(name, task)}.tsv'
            write_whole(path, lambda temporary, rows=rows: _write(temporary, rows))
            print(f'{path}: {len(rows):,} rows')


def predicted(run: Run, path: Path) -> list[tuple[str, str]]:
    return [(number, run.classes[row.argmax()] if run.classes else
             f'{row.clip(0., HIGHEST).item():.3f}')
            for numbers, values in predictions(run, path, 2 * run.data.batch_size)
            for number, row in zip(numbers, values)]


def _write(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open('w', encoding='utf-8', newline='') as file:
        csv.writer(file, delimiter='\t', lineterminator='\n').writerows(
            [('index', 'prediction'), *rows])
