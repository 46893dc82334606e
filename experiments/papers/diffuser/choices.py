r"""Multiple choice (SparseBERT, Table 2; Diffuser, Table S.4).

    python -m experiments.papers.diffuser.choices --scale small

The study compares models with several kinds of attention, and two baselines: the most frequent
label, and the choice that shares the largest fraction of its words with the question. The scale
``paper`` uses SWAG and WikiHop, which must be downloaded first. Smaller scales use a stand-in,
consecutive sentences of docstrings.
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
# On WikiHop, the paper's full attention is RoBERTa on pieces of 512 tokens.
PAPER = {'SWAG': {FULL: 82.5, NO_DIAGONAL: 83.5},
         'WikiHop': {FULL: 71.82, 'Longformer': 75.30, 'BigBird': 74.54, DIFFUSER: 75.80}}


def main(scale: ScaleName = 'small', sets: list[str] | None = None,
         names: list[str] | None = None, seeds: PositiveInt | None = None,
         out: Path = Path('runs/studies')) -> None:
    """Train a model with each kind of attention on each data set.

    Args:
        scale: Scale of the study: smoke, small or paper.
        sets: Data sets of the scale paper, swag and wikihop.
        names: Names of the kinds of attention.
        seeds: Number of trainings of each kind of attention.
        out: The folder of all studies.
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
