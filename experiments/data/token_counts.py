"""A baseline that counts symbols and ignores their order."""

from __future__ import annotations

import numpy as np

from experiments.data.sequences import SequenceData, Sequences


def token_counts_accuracy(data: SequenceData) -> float:
    """Return the accuracy of a logistic regression on symbol counts of the training part."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    learn, test = data.parts['train'], data.parts['test']
    model.fit(token_counts(learn, data.num_tokens), learn.label)
    return float(model.score(token_counts(test, data.num_tokens), test.label))


def token_counts(sequences: Sequences, num_tokens: int) -> np.ndarray:
    """Return how often each symbol occurs in each example, int64 ``[num_examples, num_tokens]``, or
    ``[num_examples, 2 * num_tokens]`` for pairs."""
    counts = [np.bincount(sequences.sequence(number), minlength=num_tokens)
              for number in range(sequences.num_sequences)]
    return np.stack(counts).reshape(len(sequences.label), -1)
