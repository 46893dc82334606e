"""Predictions of a trained model for texts, pairs of them, images or token ids without labels.

    graphattn predict --run runs/text --input new.csv --out predictions.csv

A table of texts or of pairs has the columns of the training; images are in a folder, and in those
in it; token ids are in an ``.npy`` or ``.npz``; GLUE's rows are in a test set as it is distributed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device

from experiments.runs.command_line import run_function
from experiments.runs.load_run import Run, load_run
from graphattn.models import SequenceClassifier
from graphattn.utils.files import check_folder, csv_cell, write_whole


def predict(run: str, input: str, out: str = 'predictions.csv', batch_size: int = 32,
            trust: str = '') -> None:
    """Write the class of each example and the probability of each class, or its score.

    Args:
        run: The folder of the training, ``--trainer.default_root_dir``.
        input: The file of texts or of token ids, or the folder of images.
        out: The CSV file that is written: ``example`` is the line, the row or the name of the
            image, ``label`` the likeliest class, or ``score``. What a spreadsheet would take for a
            formula has an apostrophe before it.
        batch_size: Examples in a batch.
        trust: Packages whose classes the run's config.yaml may name, with commas between
            them.
    """
    if batch_size < 1:
        raise ValueError(f"'batch_size' must be positive (got {batch_size})")
    if Path(out).is_dir():
        raise ValueError(f"'out' must be a file (got the folder {out})")
    check_folder('out', Path(out).parent)
    if not Path(input).exists():
        raise ValueError(f"'input' must be a file or a folder (there is no {input})")
    if Path(out).exists() and Path(out).samefile(input):
        raise ValueError(f"'out' must be another file than 'input' (got {out}), which it would "
                         f"replace")
    trained = load_run(run, trust.split(','))
    classes = trained.classes
    if classes is None:
        classes = [str(number) for number in range(classifier(trained).num_classes)]
    columns = ['label', *(f'probability/{name}' for name in classes)] if classes else ['score']
    num_examples = 0

    def write(path: Path) -> None:
        nonlocal num_examples
        # Names of files may be of any bytes.
        with path.open('w', newline='', encoding='utf-8', errors='surrogateescape') as file:
            writer = csv.writer(file)
            writer.writerow(['example', *columns])
            for names, values in predictions(trained, Path(input), batch_size):
                for name, row in zip(names, values):
                    label = [classes[row.argmax()]] if classes else []
                    cells = [name, *label, *(f'{value:.6f}' for value in row)]
                    writer.writerow(map(csv_cell, cells))
                num_examples += len(names)

    write_whole(Path(out), write)
    print(f'{num_examples:,} examples: {out}')


def predictions(run: Run, path: Path, batch_size: int = 32) -> Iterator[tuple[list[str],
                                                                             np.ndarray]]:
    """Yield a run's predictions for examples without labels, a batch at a time.

    Args:
        run (Run): A classifier, see :func:`experiments.load_run`.
        path (Path): The file of texts or of token ids, or the folder of images.
        batch_size (int): Examples in a batch.

    Returns:
        Iterator of (list of str, np.ndarray): What the examples of a batch are called, and the
        probability of each class, float32 ``[num_examples, num_classes]``; or the score of each
        example, ``[num_examples, 1]``, if the run has no classes.

    Raises:
        ValueError: The run is none of a classifier of sequences, or the file cannot be used.
    """
    width = classifier(run).sequences_per_example
    if not hasattr(run.data, 'unlabelled'):
        raise ValueError(f"'run' must be of texts, images or token ids (got one of "
                         f"{type(run.data).__name__})")
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    module = run.module.to(device)
    torch.manual_seed(int(run.config['seed_everything']))  # for graphs that are drawn
    for names, batch in run.data.unlabelled(path, batch_size):
        where = f'{path}, examples {names[0]} to {names[-1]}'
        num_sequences = batch.ptr.numel() - 1
        if num_sequences != width * len(names):
            raise ValueError(f"{where}: the model takes {width} for each example (there are "
                             f"{num_sequences} for {len(names)})")
        try:
            with torch.no_grad():
                values = module.predict_step(move_data_to_device(batch, device), 0)
        except ValueError as error:  # unknown ids, or too many
            raise ValueError(f'{where}: {error}') from error
        yield names, values.float().cpu().numpy()


def classifier(run: Run) -> SequenceClassifier:
    """Return the model of a run, which classifies sequences or pairs of them.

    Raises:
        ValueError: It is another one.
    """
    model = run.module.model
    if not isinstance(model, SequenceClassifier):
        raise ValueError(f"'run' must be one of a SequenceClassifier or a PairClassifier (got "
                         f"{type(model).__name__})")
    return model


if __name__ == '__main__':
    run_function(predict, as_positional=False)
