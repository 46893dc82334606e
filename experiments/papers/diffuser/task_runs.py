"""Trainings of one task with several kinds of attention, for questions, pre-training and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.data.ngrams import ngram_bits
from experiments.data.text.corpus import distinct, installed_docstrings
from experiments.data.text.local_questions import build_local_questions
from experiments.papers.diffuser.document_runs import CONFIGS, Attention
from experiments.papers.few_documents import few_documents
from experiments.papers.runs import SHIPPED, Runs, at_scale, over_seeds
from experiments.papers.study import Study
from experiments.runs.checkpoints import LAST
from graphattn.patterns import Full, SlidingWindow, get

FULL, NO_DIAGONAL, DIFFUSER = 'full', 'full, no diagonal', 'Diffuser'
COUNT = {'smoke': 4, 'small': 16, 'paper': 64}  # number of edges for each of Diffuser's three kinds


@dataclass(frozen=True)
class TaskRuns(Runs):
    """Trainings of models with several kinds of attention on one task.

    Args:
        study, name, configs, options: As in :class:`Runs`.
        begin (TaskRuns, optional): Runs of an earlier task. Each seed first trains a model with
            full attention on that task, and all runs of the seed start from this model.
    """

    begin: TaskRuns | None = None

    def trained(self, attention: Attention, seed: int, *options: str, suffix: str = '') -> Path:
        """Train a model with one kind of attention in all layers, and return the folder of its run.

        Args:
            attention: The kind of attention.
            seed: Seed of the training.
            *options: Further command-line options.
            suffix: Suffix of the name of the run.
        """
        if self.begin is not None:
            first = self.begin.trained(Attention('full', Full()), seed)
            options += ('--model.init_args.pretrained', str(first / 'checkpoints' / LAST))
        return self.fit(f'{attention.name}-{attention.hops}', seed, *attention.options(seed),
                        *options, suffix=suffix)

    def scored(self, attention: Attention, seeds: range, metrics: dict[str, tuple[str, float]],
               *options: str, suffix: str = '') -> dict[str, float | None]:
        """Return means and deviations of test metrics over the models of some seeds, as columns of
        a table, see :func:`over_seeds`."""
        return over_seeds((self.trained(attention, seed, *options, suffix=suffix)
                           for seed in seeds), metrics)


def attentions(count: int) -> dict[str, Attention]:
    """Return kinds of attention by name. In Diffuser's pattern, a query has ``count`` local keys,
    ``count`` global keys and ``count`` random keys.

    BigBird's blocks have ``count / 2`` tokens, and Longformer's window has ``count`` tokens to each
    side.
    """
    diffuser = Attention('diffuser', get('diffuser', window=count, num_global=count,
                                         num_random=count, cls_global=True))
    return {FULL: Attention('full', Full()),
            NO_DIAGONAL: Attention('no_diagonal', Full() - SlidingWindow(0)),
            'Longformer': Attention('longformer', get('longformer', radius=count, num_global=1)),
            'BigBird': Attention('bigbird', get('bigbird', block=count // 2)),
            'Diffuser, 1 hop': diffuser, DIFFUSER: diffuser.diffused()}


def question_tasks(study: Study, kind: str, sets: Sequence[str],
                   files: dict[str, str]) -> list[TaskRuns]:
    """Return the trainings for each data set of questions.

    At the scale paper, the data sets are the released ones. At smaller scales, there is one
    stand-in.

    Args:
        study (Study): The study of the runs.
        kind (str): ``'questions'`` or ``'choices'``.
        sets (sequence of str): Names of the data sets.
        files (dict): The files of the stand-in in the folder of local questions, by part.
    """
    if study.scale == 'paper':
        return [TaskRuns(study, name, (SHIPPED / kind / f'{name}.yaml',)) for name in sets]
    folder = local_questions(study)
    options = [text for part, file in files.items() for text in (
        f'--data.init_args.questions.init_args.{part}', str(folder / file))]
    return [TaskRuns(study, f'local_{kind}', at_scale(CONFIGS, study.scale, f'{kind}.yaml'),
                     (*options, *study.cache))]


def local_questions(study: Study) -> Path:
    """Return the folder of questions from installed documentation, which all studies of a scale
    share."""
    return study.made('local_questions', lambda folder: build_local_questions(
        folder, few_documents() if study.scale == 'smoke' else distinct(installed_docstrings())))


def counting_rows(learn: list, test: list, orders: Sequence[int],
                  num_symbols: int = 256) -> list[dict]:
    """Return rows with the bits per byte of n-gram models, which predict each byte from the bytes
    before it.

    Args:
        learn, test (list): Sequences of bytes in which n-grams are counted, and sequences that are
            predicted.
        orders (sequence of int): Number of context bytes of each model.
        num_symbols (int): Number of possible values of a byte.
    """
    return [{'attention': f'bytes, {order + 1}-grams' if order else 'bytes, unigrams',
             'bits per byte': ngram_bits(learn, test, order, num_symbols)} for order in orders]
