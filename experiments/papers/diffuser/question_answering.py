"""Question answering (SparseBERT, Table 2; Diffuser, Table S.4)."""

from experiments.papers.diffuser.tasks import DIFFUSER, DROPPED, FULL, NO_DIAGONAL, Tasks
from experiments.papers.figures import bars
from experiments.papers.study import Attention, Table
from graphattn.patterns import GlobalTokens, SlidingWindow

LINKED = 'window and equal words'
OWN = {LINKED: Attention('linked', SlidingWindow(4) | GlobalTokens(1),
                         more=('--model.init_args.link_equal', 'true'))}
SETS = 'squad1', 'squad2', 'triviaqa'
PARTS = 'train', 'dev', 'test'
STAND_INS = {'squad1': {part: f'squad/{part}.json' for part in PARTS},
             'triviaqa': {**{part: f'triviaqa/{part}.json' for part in PARTS},
                          'evidence': 'triviaqa/evidence'}}
NAMES = {'smoke': (FULL, LINKED), 'small': (FULL, DROPPED, NO_DIAGONAL, DIFFUSER, LINKED),
         'paper': (FULL, DROPPED, NO_DIAGONAL, 'Longformer', 'BigBird', DIFFUSER)}
METRICS = {'exact match, %': ('exact_match', 100.), 'F1, %': ('f1', 100.)}
# The papers' exact match and F1. On TriviaQA, full attention is RoBERTa on pieces of 512 tokens.
PAPER = {'SQuAD 1.1, paper EM': {FULL: 79.7, DROPPED: 79.7, NO_DIAGONAL: 80.3},
         'SQuAD 1.1, paper F1': {FULL: 87.1, DROPPED: 87.0, NO_DIAGONAL: 87.9},
         'SQuAD 2.0, paper EM': {FULL: 72.9, DROPPED: 71.5, NO_DIAGONAL: 73.2},
         'SQuAD 2.0, paper F1': {FULL: 75.5, DROPPED: 74.2, NO_DIAGONAL: 75.9},
         'TriviaQA, paper EM': {FULL: 66.87, 'Longformer': 67.24, 'BigBird': 68.26,
                                DIFFUSER: 70.20},
         'TriviaQA, paper F1': {FULL: 74.02, 'Longformer': 74.82, 'BigBird': 73.16,
                                DIFFUSER: 75.84}}


def main(tasks: Tasks) -> Table:
    kinds, rows = tasks.kinds(NAMES, OWN), []
    for runs in tasks.questions('questions', SETS, STAND_INS):
        rows += tasks.rows(runs.name, runs, kinds, tasks.each(1, 3, 3), METRICS, PAPER)
    about = ('SQuAD 1.1, SQuAD 2.0, TriviaQA' if tasks.scale == 'paper' else
             'stand-ins: gaps in docstrings, with the text (SQuAD) or three texts (TriviaQA)')
    title = f'Which words answer a question?\n{about}'
    return Table(rows, bars(rows, 'attention', METRICS, title, series='set'), about)
