r"""Replacements of three GLUE tasks, in GLUE's file formats, which are made from installed
documentation.

    python -m experiments.data.text.local_glue --out data/local_glue

Development sentences come from documents that ``experiments.data.text.corpus`` also holds out:

- ``CoLA``: whether a sentence is original (1), or some of its words were exchanged (0);
- ``RTE``: whether the second sentence follows the first in its document (``entailment``), or is
  from another document (``not_entailment``);
- ``SST-2``: whether a sentence is from torch (1) or from the standard library (0).
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments.data.sequences import check_at_least
from experiments.data.text.corpus import (
    Document,
    distinct,
    installed_documents,
    is_held_out,
    new_data,
)
from experiments.runs.command_line import run_function

Rows = list[tuple[object, ...]]
HEADERS = {'CoLA': None, 'RTE': ('index', 'sentence1', 'sentence2', 'label'),
           'SST-2': ('sentence', 'label')}
README = """These tasks have the file formats of GLUE's CoLA, RTE and SST-2. They are not GLUE:
`python -m experiments.data.text.local_glue` made them from the documentation of installed packages.
"""


def build_local_glue(
    out: Path,
    documents: Iterable[tuple[str, Document]],
    num_train: int = 4000,
    num_dev: int = 1000,
    seed: int = 0,
) -> None:
    """Write files that replace CoLA, RTE and SST-2, all of them or none."""
    sizes = {'train': num_train, 'dev': num_dev}
    check_at_least(1, num_train=num_train, num_dev=num_dev)
    check_at_least(0, seed=seed)
    with new_data(out) as folder:
        parts: dict[str, list[tuple[str, Document]]] = {'train': [], 'dev': []}
        for package, document in documents:
            parts['dev' if is_held_out(document) else 'train'].append((package, document))
        (folder / 'README').write_text(README, encoding='utf-8')
        for number, (part, size) in enumerate(sizes.items()):
            rng = np.random.default_rng((seed, number))
            for task, make in (('CoLA', exchanged_words), ('RTE', following_sentences),
                               ('SST-2', sources)):
                _write(folder / task / f'{part}.tsv', make(parts[part], size, rng), HEADERS[task])


def exchanged_words(documents: list[tuple[str, Document]], size: int,
                    rng: np.random.Generator) -> Rows:
    """Return ``size`` rows for CoLA's replacement; in every other sentence, two inner words without
    capitals or punctuation are exchanged or four are shuffled."""
    sentences = [sentence for _, document in documents for sentence in document]
    rows: Rows = []
    for index in rng.permutation(len(sentences)):
        label = len(rows) % 2
        sentence = sentences[index]
        disturbed = _disturb(sentence.split(), rng)
        if disturbed is not None:
            rows.append(('local', label, '' if label else '*',
                         sentence if label else ' '.join(disturbed)))
        if len(rows) == size:
            return _shuffled(rows, rng)
    raise ValueError(f"'num_train' and 'num_dev' must not need more sentences than there are (got "
                     f"{size} for {len(rows)} sentences with words to exchange); lower 'num_train' "
                     f"or 'num_dev'")


def _disturb(words: list[str], rng: np.random.Generator) -> list[str] | None:
    span = 2 if rng.random() < 0.5 else 4
    is_plain = [word.isalpha() and word.islower() for word in words]
    starts = [start for start in range(1, len(words) - span)
              if all(is_plain[start:start + span]) and len(set(words[start:start + span])) > 1]
    if not starts or len(words) > 40:
        return None
    start = int(rng.choice(starts))
    old = words[start:start + span]
    new = old
    while new == old:
        new = [old[i] for i in rng.permutation(span)]
    return [*words[:start], *new, *words[start + span:]]


def following_sentences(documents: list[tuple[str, Document]], size: int,
                        rng: np.random.Generator) -> Rows:
    """Return ``size`` rows for RTE's replacement, of two sentences each, of which the second
    follows the first or does not. No sentences are in two rows."""
    pairs = [(number, first) for number, (_, document) in enumerate(documents)
             for first in range(0, len(document) - 1, 2)]
    if len(pairs) < size or len(documents) < 2:
        raise ValueError(f"'num_train' and 'num_dev' must not need more pairs of sentences than "
                         f"there are (got {size} for {len(pairs)} pairs); lower 'num_train' or "
                         f"'num_dev'")
    rows: Rows = []
    for index, chosen in enumerate(rng.permutation(len(pairs))[:size]):
        number, first = pairs[chosen]
        document = documents[number][1]
        second, label = document[first + 1], 'entailment'
        if index % 2:
            other = (number + 1 + int(rng.integers(len(documents) - 1))) % len(documents)
            second, label = str(rng.choice(documents[other][1])), 'not_entailment'
        rows.append((document[first], second, label))
    return [(index, *row) for index, row in enumerate(_shuffled(rows, rng))]


def sources(documents: list[tuple[str, Document]], size: int, rng: np.random.Generator) -> Rows:
    """Return ``size`` rows for SST-2's replacement, half of them from torch, half from the standard
    library."""
    rows: Rows = []
    for label, name in enumerate(('python', 'torch')):
        sentences = [sentence for package, document in documents if package == name
                     for sentence in document]
        wanted = (size + label) // 2
        if len(sentences) < wanted:
            raise ValueError(f"'num_train' and 'num_dev' must not need more sentences of {name} "
                             f"than there are (got {wanted} for {len(sentences)} sentences); lower "
                             f"'num_train' or 'num_dev'")
        rows += [(sentences[index], label)
                 for index in rng.choice(len(sentences), wanted, replace=False)]
    return _shuffled(rows, rng)


def _shuffled(rows: Rows, rng: np.random.Generator) -> Rows:
    return [rows[index] for index in rng.permutation(len(rows))]


def _write(path: Path, rows: Rows, header: tuple[str, ...] | None) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = ['\t'.join(map(str, row)) + '\n' for row in ([header] if header else []) + rows]
    path.write_text(''.join(lines), encoding='utf-8')


def main(out: str = 'data/local_glue', num_train: int = 4000, num_dev: int = 1000,
         seed: int = 0) -> None:
    """Make stand-ins for CoLA, RTE and SST-2 from installed documentation.

    Args:
        out: The folder to write.
        num_train: Number of training rows of each task.
        num_dev: Number of development rows of each task.
        seed: Seed of the choice of rows.
    """
    build_local_glue(Path(out), distinct(installed_documents()), num_train, num_dev, seed)
    print(f'{", ".join(HEADERS)}: {num_train} rows for training and {num_dev} for '
          f'development each, in {out}')


if __name__ == '__main__':
    run_function(main)
