r"""Question answering (SparseBERT, Table 2; Diffuser, Table S.4).

    python -m experiments.papers.diffuser.question_answering --scale small

The study compares models that find the answer to a question in a text. They have several kinds of
attention. The baseline is the word with the longest match to the neighbours of the gap. The scale
``paper`` uses SQuAD 1.1, SQuAD 2.0 and TriviaQA, which must be downloaded first. Smaller scales use
a stand-in, gaps in docstrings.
"""

from __future__ import annotations

from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.data.text.question_baselines import longest_match_scores
from experiments.papers.diffuser.document_runs import Attention
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
from graphattn.patterns import GlobalTokens, SlidingWindow

SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
LINKED = 'window and equal words'
SETS = ('squad1', 'squad2', 'triviaqa')
FILES = {part: f'squad/{part}.json' for part in ('train', 'dev', 'test')}
DEFAULT = {'smoke': (FULL, LINKED), 'small': (FULL, NO_DIAGONAL, DIFFUSER, LINKED),
           'paper': (FULL, NO_DIAGONAL, 'Longformer', 'BigBird', DIFFUSER)}
METRICS = {'exact match, %': ('exact_match', 100.), 'F1, %': ('f1', 100.)}
# The papers' exact match and F1. On TriviaQA, full attention is RoBERTa on pieces of 512 tokens.
PAPER = {'SQuAD 1.1': {FULL: (79.7, 87.1), NO_DIAGONAL: (80.3, 87.9)},
         'SQuAD 2.0': {FULL: (72.9, 75.5), NO_DIAGONAL: (73.2, 75.9)},
         'TriviaQA': {FULL: (66.87, 74.02), 'Longformer': (67.24, 74.82),
                      'BigBird': (68.26, 73.16), DIFFUSER: (70.20, 75.84)}}


def main(scale: ScaleName = 'small', sets: list[str] | None = None,
         names: list[str] | None = None, seeds: PositiveInt | None = None,
         out: Path = Path('runs/studies')) -> None:
    """Train a model with each kind of attention on each data set.

    Args:
        scale: Scale of the study: smoke, small or paper.
        sets: Data sets of the scale paper: squad1, squad2 and triviaqa.
        names: Names of the kinds of attention.
        seeds: Number of trainings of each kind of attention.
        out: The folder of all studies.
    """
    study = Study('question_answering', scale, out)
    known = {**attentions(COUNT[scale]),
             LINKED: Attention('linked', SlidingWindow(4) | GlobalTokens(1))}
    names = chosen('names', names or DEFAULT[scale], known)
    rows = []
    for runs in question_tasks(study, 'questions', chosen('sets', sets or SETS, SETS), FILES):
        for name in names:
            linked = ('--model.init_args.link_equal', 'true') if name == LINKED else ()
            scores = runs.scored(known[name], range(seeds or SEEDS[scale]), METRICS, *linked)
            rows.append({'set': runs.name, 'attention': name, **scores,
                         **(printed(name) if scale == 'paper' else {})})
        if scale != 'paper':
            data = data_of(runs.trained(known[names[0]], 0))
            found = longest_match_scores(data.questions.read().parts['test'])
            rows.append({'set': runs.name, 'attention': 'longest match', **{
                title: 100 * found[metric] for title, (metric, _) in METRICS.items()}})
    about = 'gaps in docstrings, a stand-in for SQuAD' if scale != 'paper' else ', '.join(PAPER)
    title = f'Which words answer a question?\n{about}'
    study.report(rows, bars(rows, 'attention', METRICS, title, series='set'), about)


def printed(name: str) -> dict[str, float | None]:
    """Return the exact match and F1 that papers report for a kind of attention, as columns of the
    table. Missing results are ``None``."""
    return {f'{kind}, {column}': figures[name][place] if name in figures else None
            for kind, figures in PAPER.items()
            for place, column in enumerate(('paper EM', 'paper F1'))}


if __name__ == '__main__':
    run_function(main)
