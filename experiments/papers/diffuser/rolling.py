"""Accuracy of document classifiers on inputs that are rolled by a few tokens (Fig. S.11)."""

from pathlib import Path

from experiments.papers.diffuser.documents import Documents
from experiments.papers.figures import curves
from experiments.papers.study import Table, mean_and_spread, restored, tested

SHIFTS = {'smoke': (0, 4), 'small': (0, 1, 4, 16, 64), 'paper': (0, 1, 2, 4, 8, 16, 32, 64)}
# by what is rolled: whether [CLS] and [SEP] stay in place
# The paper rolls all tokens, which moves [CLS] away from the position that predicts the class.
ROLLED = {'all tokens': False, 'the text alone': True}
KINDS = 'full', 'BigBird', 'Longformer', 'Diffuser, one hop', 'Diffuser'


def main(documents: Documents) -> Table:
    seeds = documents.each(1, 3, 3)
    rows = []
    for name in KINDS:
        attention = documents.kinds[name]
        found = [_accuracy(documents.runs.trained(attention, seed), SHIFTS[documents.scale])
                 for seed in seeds]
        rows += [{'attention': name, 'rolled': what, 'by': shift,
                  **mean_and_spread('accuracy, %', [one[what, shift] for one in found]),
                  **mean_and_spread('drop, points', [one[what, 0] - one[what, shift]
                                                     for one in found])}
                 for what, shift in found[0]]
    title = ('The paper: rolling by a few tokens costs much accuracy; of the sparse models, '
             f'Diffuser loses the least.\n{documents.about}')
    figure = curves(rows, 'by', ['drop, points'], title, panel='rolled', series='attention',
                    ylabel='drop of the accuracy, points')
    return Table(rows, figure, documents.about)


def _accuracy(run: Path, shifts: tuple[int, ...]) -> dict[tuple[str, int], float]:
    """Return the accuracy of a classifier by what is rolled, and by how many tokens."""
    classifier = restored(run)
    tested(classifier, 'accuracy')  # also reads the documents
    sets = classifier[1].sets
    documents, accuracy = sets['test'], {}
    for what, keep_ends in ROLLED.items():
        for shift in shifts:
            sets['test'] = documents.rolled(shift, keep_ends)
            accuracy[what, shift] = 100 * tested(classifier, 'accuracy')
    return accuracy
