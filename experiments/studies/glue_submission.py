r"""What fine-tuned models say of GLUE's test sets, in the files that its server takes.

    python -m experiments.studies.glue_submission --runs runs/glue/NAME/seed0 --glue data/glue \
        --out runs/glue/NAME/submission

``--runs`` is a folder with one run for each task, as :mod:`experiments.studies.glue_table` leaves
it. The server wants the files of all tasks in one archive, those of WNLI and AX too, which the
papers leave out.
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from experiments.data.text.glue_files import TASKS, Row, read_test_rows
from experiments.data.text.tokenizer import load_tokenizer
from experiments.objectives import FineTuning
from experiments.runs.command_line import run_function
from experiments.studies.study import restored
from experiments.tasks import Glue
from experiments.tasks.glue import Examples, collate
from graphattn._files import check_folder, write_whole

HIGHEST = 5.  # of STS-B's scores


def main(runs: Path, glue: Path, out: Path) -> None:
    """Predicts the test sets of all tasks that were trained on.

    Args:
        runs: A folder with one run for each task.
        glue: GLUE's data, with one folder for each task.
        out: The folder of the files.
    """
    check_folder('out', out)
    trained = [task for task in TASKS if (runs / task / 'summary.json').exists()]
    if not trained:
        raise ValueError(f"'runs' must hold finished runs in folders called {', '.join(TASKS)} "
                         f"(there are none in {runs})")
    for task in trained:
        objective, data, _ = restored(runs / task)
        for name in TASKS[task].test:
            rows = predicted(objective, data, glue / task / f'{name}.tsv')
            path = out / f'{server_name(task, name)}.tsv'
            write_whole(path, lambda temporary, rows=rows: _write(temporary, rows))
            print(f'{path}: {len(rows):,} rows')


def server_name(task: str, name: str) -> str:
    """What GLUE's server calls the answers to one of a task's test sets."""
    return {'test_matched': f'{task}-m', 'test_mismatched': f'{task}-mm'}.get(name, task)


def predicted(objective: FineTuning, data: Glue, path: Path) -> list[tuple[str, str]]:
    """Number and label, or score, of each row of a test set."""
    task = objective.task
    numbers, texts = zip(*read_test_rows(path, task))
    tokenizer = load_tokenizer(data.tokenizer_path or objective.tokenizer_path)
    examples = Examples([Row(text, 0) for text in texts], tokenizer, data.max_length, path.stem)
    objective.eval()
    batches = DataLoader(examples, 2 * data.batch_size, collate_fn=collate)
    said = torch.cat([objective.predict_step(batch)
                      for batch in tqdm(batches, desc=path.stem, disable=None)])
    if task.classes:
        return [(number, task.classes[place]) for number, place in zip(numbers, said.tolist())]
    return [(number, f'{score:.3f}') for number, score in zip(
        numbers, said.float().clamp(0., HIGHEST).tolist())]


def _write(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open('w', encoding='utf-8', newline='') as file:
        csv.writer(file, delimiter='\t', lineterminator='\n').writerows(
            [('index', 'prediction'), *rows])


if __name__ == '__main__':
    run_function(main)
