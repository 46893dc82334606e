"""A corpus of which each token tells where it is from: its document, sentence and place."""

from pathlib import Path

import numpy as np

from experiments.data.text.corpus import is_held_out
from experiments.data.text.tokenizer import NAMES


def write_traceable(folder: Path, num_documents: int = 200) -> list[list[list[str]]]:
    """Writes text.txt and vocab.txt; gives the words of each sentence of each document."""
    rng = np.random.default_rng(0)
    documents = [[[f'd{d}s{s}w{w}' for w in range(rng.integers(1, 8))]
                  for s in range(rng.integers(1, 12))] for d in range(num_documents)]
    words = [word for document in documents for sentence in document for word in sentence]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'vocab.txt').write_text('\n'.join([*NAMES, '.', *words]) + '\n')
    (folder / 'text.txt').write_text('\n\n'.join(
        '\n'.join(' '.join(sentence) + '.' for sentence in document) for document in documents))
    return documents


def held_out(documents: list[list[list[str]]]) -> list[bool]:
    """Return which of the documents are for development."""
    return [is_held_out([' '.join(sentence) + '.' for sentence in document])
            for document in documents]
