"""Multiple choice (SparseBERT, Table 2; Diffuser, Table S.4)."""

from experiments.papers.diffuser.tasks import DIFFUSER, DROPPED, FULL, NO_DIAGONAL, Tasks
from experiments.papers.figures import bars
from experiments.papers.study import ACCURACY, Table

SETS = 'swag', 'wikihop'
STAND_INS = {'swag': {'train': 'swag/train.csv', 'dev': 'swag/val.csv', 'test': 'swag/test.csv'},
             'wikihop': {part: f'wikihop/{part}.json' for part in ('train', 'dev', 'test')}}
NAMES = {'smoke': (FULL,), 'small': (FULL, DROPPED, NO_DIAGONAL, DIFFUSER),
         'paper': (FULL, DROPPED, NO_DIAGONAL, 'Longformer', 'BigBird', DIFFUSER)}
# On WikiHop, the paper's full attention is RoBERTa on pieces of 512 tokens.
PAPER = {'SWAG, paper': {FULL: 82.5, DROPPED: 81.6, NO_DIAGONAL: 83.5},
         'WikiHop, paper': {FULL: 71.82, 'Longformer': 75.30, 'BigBird': 74.54, DIFFUSER: 75.80}}


def main(tasks: Tasks) -> Table:
    kinds, rows = tasks.kinds(NAMES), []
    for runs in tasks.questions('choices', SETS, STAND_INS):
        rows += tasks.rows(runs.name, runs, kinds, tasks.each(1, 3, 3), ACCURACY, PAPER)
    about = ('SWAG, WikiHop' if tasks.scale == 'paper' else
             'stand-ins: the next sentence of a docstring (SWAG), a gap and three texts (WikiHop)')
    title = f'Which choice is right?\n{about}'
    return Table(rows, bars(rows, 'attention', ACCURACY, title, series='set'), about)
