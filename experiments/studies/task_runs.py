"""Trainings of the studies of questions, pre-training and densities: one task, several
attentions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from experiments.data.text.corpus import distinct, installed_docstrings
from experiments.data.text.local_questions import build_local_questions
from experiments.runs.checkpoints import LAST
from experiments.studies.document_runs import Attention
from experiments.studies.few_documents import few_documents
from experiments.studies.runs import Runs, over_seeds
from experiments.studies.study import Study
from graphattn.patterns import Full, SlidingWindow, get

FULL, NO_DIAGONAL, DIFFUSER = 'full', 'full, no diagonal', 'Diffuser'
COUNT = {'smoke': 4, 'small': 16, 'paper': 64}  # of each of Diffuser's three kinds of edges


@dataclass(frozen=True)
class TaskRuns(Runs):
    """Runs on one task, each with an attention.

    Args:
        study, name, configs, options: As for :class:`Runs`.
        begin (TaskRuns, optional): What each seed first trains with full attention; the others
            begin with its parameters.
    """

    begin: TaskRuns | None = None

    def trained(self, attention: Attention, seed: int, *options: str, suffix: str = '') -> Path:
        """Train a model with this attention in all layers; the rest is as for :meth:`fit`."""
        if self.begin is not None:
            first = self.begin.trained(Attention('full', Full()), seed)
            options += ('--model.init_args.pretrained', str(first / 'checkpoints' / LAST))
        return self.fit(f'{attention.name}-{attention.hops}', seed, *attention.options(seed),
                        *options, suffix=suffix)

    def scored(self, attention: Attention, seeds: range, metrics: dict[str, tuple[str, float]],
               *options: str, suffix: str = '') -> dict[str, float | None]:
        """Return the scores of :func:`over_seeds` of :meth:`trained` models."""
        return over_seeds((self.trained(attention, seed, *options, suffix=suffix)
                           for seed in seeds), metrics, '{}, spread'.format)


def attentions(count: int) -> dict[str, Attention]:
    """Attentions by name, with ``count`` tokens of each kind in Diffuser's, which keep BigBird's
    block and the half of Longformer's window as wide."""
    diffuser = Attention('diffuser', get('diffuser', window=count, num_global=count,
                                         num_random=count, cls_global=True))
    return {FULL: Attention('full', Full()),
            NO_DIAGONAL: Attention('no_diagonal', Full() - SlidingWindow(0)),
            'Longformer': Attention('longformer', get('longformer', radius=count, num_global=1)),
            'BigBird': Attention('bigbird', get('bigbird', block=count // 2)),
            'Diffuser, 1 hop': diffuser, DIFFUSER: diffuser.diffused()}


def local_questions(study: Study) -> Path:
    """Return the folder of questions from installed documentation, which all studies of a scale
    share."""
    return study.made('local_questions', lambda folder: build_local_questions(
        folder, few_documents() if study.scale == 'smoke' else distinct(installed_docstrings())))


def bars(rows: list[dict], columns: list[str], title: str, label: str = 'attention') -> Figure:
    """Draw a bar for each row and column, with the standard deviation over seeds. Rows without one
    are guesses, and grey."""
    figure = Figure(figsize=(2.2 + 3.4 * len(columns), 0.4 * len(rows) + 1.6), layout='constrained')
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axes, column in zip(panels, columns):
        values = [row.get(column) for row in rows]
        most = max(value + (row.get(f'{column}, spread') or 0.)
                   for row, value in zip(rows, values) if value is not None) or 1.
        for y, (row, value) in enumerate(zip(rows, values)):
            if value is None:
                continue
            is_guess = f'{column}, spread' not in row
            axes.barh(y, value, color='0.75' if is_guess else 'C0', alpha=.6, capsize=3,
                      xerr=row.get(f'{column}, spread'))
            axes.text(1.02 * most, y, f'{value:.3g}', va='center', fontsize='small')
        axes.set(xlabel=column, xlim=(0, 1.22 * most), yticks=range(len(rows)),
                 yticklabels=[row[label] for row in rows])
        axes.grid(alpha=.3, axis='x')
    panels[0].invert_yaxis()
    figure.suptitle(title)
    return figure
