"""Predictions of a trained model for unlabelled texts, pairs of texts, images or token ids.

    graphattn predict --run runs/text --input new.csv --out predictions.csv

A table of texts or pairs must have the columns of the training table. Images are in a folder and
its subfolders. Token ids are in an ``.npy`` or ``.npz`` file. GLUE's rows are in a test set as GLUE
distributes it.
"""

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

TEXTS = (), ('text',), ('text_a', 'text_b')  # columns, by the number of texts of an example


def predict(run: str, input: str, out: str = 'predictions.csv', batch_size: int = 32,
            trust: str = '') -> None:
    """Predict the examples of a file or folder, and write the class and the probability of each
    class, or the score, to a CSV file.

    Args:
        run: The folder of the training, ``--trainer.default_root_dir``.
        input: The file of texts or of token ids, or the folder of images.
        out: The CSV file to write. The column ``example`` is the line, the row or the name of the
            image; the column ``text``, or ``text_a`` and ``text_b``, is the text. If the run has
            classes, further columns are ``label`` (the likeliest class) and the probability of each
            class. Otherwise, the other column is ``score``. Text that a spreadsheet would read as a
            formula is prefixed with an apostrophe.
        batch_size: Number of examples in a batch.
        trust: Packages whose classes the run's config.yaml may name, separated by commas.
    """
    if batch_size < 1:
        raise ValueError(f"'batch_size' must be at least 1 (got {batch_size})")
    if Path(out).is_dir():
        raise ValueError(f"'out' must be a file (got the folder {out})")
    check_folder('out', Path(out).parent)
    if not Path(input).exists():
        raise ValueError(f"'input' must be an existing file or folder (got {input})")
    if Path(out).exists() and Path(out).samefile(input):
        raise ValueError(f"'out' must differ from 'input', which would be overwritten (got {out} "
                         f"for both)")
    trained = load_run(run, trust.split(','))
    classes = trained.classes
    if classes is None:
        classes = [str(number) for number in range(classifier(trained).num_classes)]
    columns = ['label', *(f'probability/{name}' for name in classes)] if classes else ['score']
    num_examples = 0

    def write(path: Path) -> None:
        nonlocal num_examples
        # File names may contain any bytes.
        with path.open('w', newline='', encoding='utf-8', errors='surrogateescape') as file:
            writer = csv.writer(file)
            for names, values, texts in with_texts(trained, Path(input), batch_size):
                if num_examples == 0:
                    writer.writerow(['example', *TEXTS[len(texts[0])], *columns])
                for name, row, text in zip(names, values, texts):
                    label = [classes[row.argmax()]] if classes else []
                    cells = [name, *text, *label, *(f'{value:.6f}' for value in row)]
                    writer.writerow(map(csv_cell, cells))
                num_examples += len(names)
            if num_examples == 0:
                writer.writerow(['example', *columns])

    write_whole(Path(out), write)
    print(f'{num_examples:,} examples: {out}')


def predictions(run: Run, path: Path, batch_size: int = 32) -> Iterator[tuple[list[str],
                                                                             np.ndarray]]:
    """Yield the predictions of a run for unlabelled examples, batch by batch.

    Args:
        run (Run): A classifier, see :func:`experiments.load_run`.
        path (Path): The file of texts or of token ids, or the folder of images.
        batch_size (int): Number of examples in a batch.

    Returns:
        Iterator of (list of str, np.ndarray): The names of a batch's examples, and the predictions.
        These are the probability of each class, float32 ``[num_examples, num_classes]``. If the run
        has no classes, they are the score of each example, ``[num_examples, 1]``.

    Raises:
        ValueError: The model of the run is not a classifier of sequences, or the file cannot be
            read or is invalid.
    """
    return ((names, values) for names, values, _ in with_texts(run, path, batch_size))


def with_texts(run: Run, path: Path, batch_size: int
               ) -> Iterator[tuple[list[str], np.ndarray, list[tuple[str, ...]]]]:
    """Yield names, predictions and texts of examples, which are empty tuples for other data."""
    width = classifier(run).sequences_per_example
    if not hasattr(run.data, 'unlabelled'):
        raise ValueError(f"'run' must be a run on texts, images or token ids (got a run on "
                         f"{type(run.data).__name__})")
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    module = run.module.to(device)
    torch.manual_seed(int(run.config['seed_everything']))  # for sampled graphs
    for names, batch, *more in run.data.unlabelled(path, batch_size):
        where = f'{path}, examples {names[0]} to {names[-1]}'
        num_sequences = batch.ptr.numel() - 1
        if num_sequences != width * len(names):
            raise ValueError(f"{where}: expected {width} sequences for each example, as the model "
                             f"of the run needs (got {num_sequences} sequences for {len(names)} "
                             f"examples)")
        try:
            with torch.no_grad():
                values = module.predict_step(move_data_to_device(batch, device), 0)
        except ValueError as error:  # unknown ids, or too many tokens, raise it
            raise ValueError(f'{where}: {error}') from error
        yield names, values.float().cpu().numpy(), more[0] if more else [()] * len(names)


def classifier(run: Run) -> SequenceClassifier:
    """Return the model of a run, which must be a classifier of sequences or of pairs."""
    model = run.module.model
    if not isinstance(model, SequenceClassifier):
        raise ValueError(f"'run' must be the run of a SequenceClassifier or a PairClassifier (got "
                         f"{type(model).__name__})")
    return model


if __name__ == '__main__':
    run_function(predict, as_positional=False)
