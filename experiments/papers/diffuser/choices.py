r"""Choosing one of several answers (SparseBERT, Table 2; Diffuser, Table S.4).

    python -m experiments.papers.diffuser.choices --scale small

Models with several attentions, beside two guesses: the number that is right most often, and the
choice that shares most of its words with the question. At the paper's scale on SWAG and WikiHop,
which must be had first; below it on sentences that follow one another in docstrings, a stand-in.
"""

from __future__ import annotations

from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.data.text.question_baselines import choice_accuracies
from experiments.papers.diffuser.task_runs import (
    COUNT,
    DIFFUSER,
    FULL,
    NO_DIAGONAL,
    attentions,
    question_tasks,
)
from experiments.papers.figures import bars
from experiments.papers.runs import chosen
from experiments.papers.study import ScaleName, Study, data_of
from experiments.runs.command_line import run_function

SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
SETS = ('swag', 'wikihop')
FILES = {'train': 'swag/train.csv', 'dev': 'swag/val.csv', 'test': 'swag/test.csv'}
DEFAULT = {'smoke': (FULL,), 'small': (FULL, NO_DIAGONAL, DIFFUSER),
           'paper': (FULL, NO_DIAGONAL, 'Longformer', 'BigBird', DIFFUSER)}
METRICS = {'accuracy, %': ('accuracy', 100.)}
# What stands for full attention on WikiHop is RoBERTa on pieces of 512 tokens.
PAPER = {'SWAG': {FULL: 82.5, NO_DIAGONAL: 83.5},
         'WikiHop': {FULL: 71.82, 'Longformer': 75.30, 'BigBird': 74.54, DIFFUSER: 75.80}}


def main(scale: ScaleName = 'small', sets: list[str] | None = None,
         names: list[str] | None = None, seeds: PositiveInt | None = None,
         out: Path = Path('runs/studies')) -> None:
    """Train a model of each attention on each set.

    Args:
        scale: How much of it.
        sets: Some of swag and wikihop, at the paper's scale.
        names: Which attentions.
        seeds: Trainings of each.
        out: Folder of all studies.
    """
    study = Study('choices', scale, out)
    known = attentions(COUNT[scale])
    names = chosen('names', names or DEFAULT[scale], known)
    rows = []
    for runs in question_tasks(study, 'choices', chosen('sets', sets or SETS, SETS), FILES):
        for name in names:
            scores = runs.scored(known[name], range(seeds or SEEDS[scale]), METRICS)
            rows.append({'set': runs.name, 'attention': name, **scores, **{
                f'{kind}, paper': figures.get(name) for kind, figures in PAPER.items()
                if scale == 'paper'}})
        guesses = choice_accuracies(data_of(runs.trained(known[names[0]], 0)).questions.read())
        rows += [{'set': runs.name, 'attention': name, 'accuracy, %': 100 * accuracy}
                 for name, accuracy in guesses.items()]
    about = ('the next sentence of a docstring, of four: a stand-in for SWAG'
             if scale != 'paper' else ', '.join(PAPER))
    title = f'Which choice is right?\n{about}'
    study.report(rows, bars(rows, 'attention', METRICS, title, series='set'), about)


if __name__ == '__main__':
    run_function(main)
