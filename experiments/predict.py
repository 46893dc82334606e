"""What a trained classifier says of texts, images or token ids without labels.

    graphattn predict --run runs/text --input new.csv --out predictions.csv

A table of texts has the columns of the training; images are in a folder, and in those in it; token
ids are in an ``.npy`` or ``.npz``.
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
from graphattn._files import check_folder, write_whole


def predict(run: str, input: str, out: str = 'predictions.csv', batch_size: int = 32) -> None:
    """Writes the class of each example, and the probability of each class.

    Args:
        run: The folder of the training, ``--trainer.default_root_dir``.
        input: The file of texts or of token ids, or the folder of images.
        out: The CSV file that is written: ``example`` is the line, the row or the name of the
            image, ``label`` the likeliest class.
        batch_size: Examples that are looked at together.
    """
    if batch_size < 1:
        raise ValueError(f"'batch_size' must be positive (got {batch_size})")
    if Path(out).is_dir():
        raise ValueError(f"'out' must be a file (got the folder {out})")
    check_folder('out', Path(out).parent)
    if not Path(input).exists():
        raise ValueError(f"'input' must be a file or a folder (there is no {input})")
    trained = load_run(run)
    classes = trained.classes or [str(number) for number in range(num_classes(trained))]
    num_examples = 0

    def write(path: Path) -> None:
        nonlocal num_examples
        with path.open('w', newline='') as file:
            writer = csv.writer(file)
            writer.writerow(['example', 'label', *(f'probability/{name}' for name in classes)])
            for names, probability in predictions(trained, Path(input), batch_size):
                likeliest = probability.argmax(axis=1)
                writer.writerows([name, classes[number], *(f'{share:.6f}' for share in shares)]
                                 for name, number, shares in zip(names, likeliest, probability))
                num_examples += len(names)

    write_whole(Path(out), write)
    print(f'{num_examples:,} examples: {out}')


def predictions(run: Run, path: Path, batch_size: int = 32) -> Iterator[tuple[list[str],
                                                                             np.ndarray]]:
    """The probabilities of examples without labels, a batch at a time.

    Args:
        run (Run): A classifier, see :func:`experiments.load_run`.
        path (Path): The file of texts or of token ids, or the folder of images.
        batch_size (int): Examples that are looked at together.

    Returns:
        Iterator of (list of str, np.ndarray): What the examples of a batch are called, and the
        probability of each class, float32 ``[num_examples, num_classes]``.

    Raises:
        ValueError: The run is none of a classifier of sequences, or the file cannot be used.
    """
    num_classes(run)
    if not hasattr(run.data, 'unlabelled'):
        raise ValueError(f"'run' must be of texts, images or token ids (got one of "
                         f"{type(run.data).__name__})")
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    model = run.objective.model.to(device)
    torch.manual_seed(int(run.config['seed_everything']))  # for graphs that are drawn
    for names, batch in run.data.unlabelled(path, batch_size):
        batch = move_data_to_device(batch, device)
        try:
            with torch.no_grad():
                probability = model(batch.tokens, batch.ptr).softmax(dim=1)
        except ValueError as error:  # unknown ids, or too many
            raise ValueError(f'{path}, examples {names[0]} to {names[-1]}: {error}') from error
        yield names, probability.float().cpu().numpy()


def num_classes(run: Run) -> int:
    """How many classes a run tells apart.

    Raises:
        ValueError: It is none of a classifier of sequences.
    """
    model = run.objective.model
    if getattr(model, 'sequences_per_example', None) != 1:
        raise ValueError(f"'run' must be one of a SequenceClassifier (got {type(model).__name__})")
    return model.num_classes


if __name__ == '__main__':
    run_function(predict, as_positional=False)
