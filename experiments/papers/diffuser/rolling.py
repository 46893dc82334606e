r"""Accuracy of document classifiers on inputs that are rolled by a few tokens (Fig. S.11).

    python -m experiments.papers.diffuser.rolling --scale small

The study tests the classifiers of the study of diffusion again. The paper rolls all tokens, which
moves [CLS] away from the position that predicts the class. Here, the text between [CLS] and [SEP]
is also rolled alone. The comparison shows how much of the drop is due to the position of [CLS].
"""

from __future__ import annotations

from pathlib import Path

from experiments.papers.diffuser.document_runs import DocumentRuns, document_study
from experiments.papers.figures import curves
from experiments.papers.runs import mean_and_spread
from experiments.papers.study import ScaleName, restored
from experiments.runs.command_line import run_function

SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
SHIFTS = {'smoke': (0, 4), 'small': (0, 1, 4, 16, 64), 'paper': (0, 1, 2, 4, 8, 16, 32, 64)}
# by what is rolled: whether [CLS] and [SEP] stay in place
ROLLED = {'all tokens': False, 'the text alone': True}


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train classifiers if they are missing, and test them on rolled documents.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`document_study`.
    """
    runs, seeds = document_study('rolling', scale, SEEDS[scale], **kwargs)
    rows = []
    for name, attention in _kinds(runs).items():
        tested = [_accuracy(runs.trained(attention, seed), SHIFTS[scale]) for seed in seeds]
        rows += [_row(name, what, shift, [accuracy[what, shift] for accuracy in tested],
                      [accuracy[what, 0] for accuracy in tested]) for what, shift in tested[0]]
    title = ('The paper: rolling by a few tokens costs much accuracy; of the sparse models, '
             f'Diffuser loses the least.\n{runs.about}')
    figure = curves(rows, 'by', ['drop, points'], title, panel='rolled', series='attention',
                    ylabel='drop of the accuracy, points')
    for axes in figure.axes:
        axes.set_xscale('symlog', linthresh=1)
        axes.set_xticks(SHIFTS[scale], [str(shift) for shift in SHIFTS[scale]])
    runs.study.report(rows, figure, runs.about)


def _kinds(runs: DocumentRuns) -> dict:
    return {'full': runs.full, 'BigBird': runs.bigbird, 'Longformer': runs.longformer,
            'Diffuser, one hop': runs.diffuser(), 'Diffuser': runs.diffuser().diffused()}


def _accuracy(run: Path, shifts: tuple[int, ...]) -> dict[tuple[str, int], float]:
    """Return the test accuracy of a classifier on rolled documents, by the name of the part that is
    rolled and the shift in tokens."""
    training, data, trainer = restored(run)
    trainer.test(training, data, verbose=False)  # also reads the documents
    documents = data.sets['test']
    accuracy = {}
    for what, keep_ends in ROLLED.items():
        for shift in shifts:
            data.sets['test'] = documents.rolled(shift, keep_ends)
            metrics, = trainer.test(training, data, verbose=False)
            accuracy[what, shift] = 100 * metrics['test/accuracy']
    return accuracy


def _row(attention: str, what: str, shift: int, accuracy: list[float],
         unrolled: list[float]) -> dict:
    drops = [before - after for before, after in zip(unrolled, accuracy)]
    return {'attention': attention, 'rolled': what, 'by': shift,
            **mean_and_spread('accuracy, %', accuracy), **mean_and_spread('drop, points', drops)}


if __name__ == '__main__':
    run_function(main)
