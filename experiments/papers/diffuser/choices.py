r"""Multiple choice (SparseBERT, Table 2; Diffuser, Table S.4).

    graphattn study choices --scale small

The baselines are the most frequent label, and the choice that shares the largest fraction of its
words with the question. The scale ``paper`` uses SWAG and WikiHop, which must be downloaded first.
Smaller scales use a stand-in, consecutive sentences of docstrings.
"""

from experiments.data.text.question_baselines import choice_accuracies
from experiments.papers.diffuser.tasks import DIFFUSER, FULL, NO_DIAGONAL, Asked, task_study
from experiments.papers.figures import bars
from experiments.papers.study import ACCURACY, SCALES, Table
from experiments.runs.command_line import run_function

SETS = dict.fromkeys(SCALES, ('swag', 'wikihop'))
FILES = {'train': 'swag/train.csv', 'dev': 'swag/val.csv', 'test': 'swag/test.csv'}
NAMES = {'smoke': (FULL,), 'small': (FULL, NO_DIAGONAL, DIFFUSER),
         'paper': (FULL, NO_DIAGONAL, 'Longformer', 'BigBird', DIFFUSER)}
# On WikiHop, the paper's full attention is RoBERTa on pieces of 512 tokens.
PAPER = {'SWAG, paper': {FULL: 82.5, NO_DIAGONAL: 83.5},
         'WikiHop, paper': {FULL: 71.82, 'Longformer': 75.30, 'BigBird': 74.54, DIFFUSER: 75.80}}


@task_study(1, 3, 3, sets=SETS, names=NAMES)
def main(asked: Asked) -> Table:
    rows = []
    for name, runs in asked.questions('choices', FILES).items():
        rows += asked.rows(name, runs, ACCURACY, PAPER)
        guesses = choice_accuracies(asked.data(runs).questions.read())
        rows += [{'set': name, 'attention': guess, 'accuracy, %': 100 * accuracy}
                 for guess, accuracy in guesses.items()]
    about = ('SWAG, WikiHop' if asked.is_paper else
             'the next sentence of a docstring, of four: a stand-in for SWAG')
    title = f'Which choice is right?\n{about}'
    return Table(rows, bars(rows, 'attention', ACCURACY, title, series='set'), about)


if __name__ == '__main__':
    run_function(main)
