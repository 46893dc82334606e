r"""Accuracy of a classifier whose input is rolled by a few tokens (Fig. S.11).

    python -m experiments.studies.rolling --scale small

The classifiers of the study of diffusion are tested again. The paper rolls all tokens, so that
another one than [CLS] stands where the class is read. Beside that, the text alone is rolled here,
between [CLS] and [SEP], which tells how much of the drop comes from the place of [CLS].
"""

from __future__ import annotations

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from experiments.runs.command_line import run_function
from experiments.runs.summary import spread
from experiments.studies.document_runs import DocumentRuns, document_study
from experiments.studies.study import ScaleName, restored

SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
SHIFTS = {'smoke': (0, 4), 'small': (0, 1, 4, 16, 64), 'paper': (0, 1, 2, 4, 8, 16, 32, 64)}
ROLLED = {'all tokens': False, 'the text alone': True}  # whether [CLS] and [SEP] keep their place


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train classifiers, if they are not there, and tests them on rolled documents.

    Args:
        scale: How much of it.
        **kwargs: Those of :func:`document_study`.
    """
    runs, seeds = document_study('rolling', scale, SEEDS[scale], **kwargs)
    rows = []
    for name, attention in _kinds(runs).items():
        tested = [_accuracy(runs.trained(attention, seed), SHIFTS[scale]) for seed in seeds]
        rows += [_row(name, what, shift, [accuracy[what, shift] for accuracy in tested],
                      [accuracy[what, 0] for accuracy in tested]) for what, shift in tested[0]]
    print(f'\n{runs.about}')
    runs.study.report(rows, _draw(rows, runs.about))


def _kinds(runs: DocumentRuns) -> dict:
    return {'full': runs.full, 'BigBird': runs.bigbird, 'Longformer': runs.longformer,
            'Diffuser, one hop': runs.diffuser(), 'Diffuser': runs.diffuser().diffused()}


def _accuracy(run: Path, shifts: tuple[int, ...]) -> dict[tuple[str, int], float]:
    """Return the accuracy on the test part, by what is rolled and how far."""
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
            'accuracy, %': statistics.mean(accuracy), 'accuracy, spread': spread(accuracy),
            'drop, points': statistics.mean(drops), 'drop, spread': spread(drops)}


def _draw(rows: list[dict], about: str) -> Figure:
    figure = Figure(figsize=(11, 4), layout='constrained')
    panels = figure.subplots(1, len(ROLLED), sharey=True)
    for axes, what in zip(panels, ROLLED):
        for name in dict.fromkeys(row['attention'] for row in rows):
            chosen = [row for row in rows if (row['attention'], row['rolled']) == (name, what)]
            axes.errorbar([row['by'] for row in chosen], [row['drop, points'] for row in chosen],
                          [row['drop, spread'] or 0. for row in chosen], label=name, marker='o',
                          capsize=3)
        shifts = sorted({row['by'] for row in rows})
        axes.set_xscale('symlog', linthresh=1)
        axes.set(title=f'rolled: {what}', xlabel='by, tokens', xticks=shifts, xticklabels=shifts)
        axes.grid()
    panels[0].set(ylabel='drop of the accuracy, points')
    panels[1].legend()
    figure.suptitle('The paper: a few tokens cost much, and Diffuser the least of the sparse '
                    f'models.\n{about}')
    return figure


if __name__ == '__main__':
    run_function(main)
