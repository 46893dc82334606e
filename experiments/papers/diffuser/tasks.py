"""Models of questions, choices, masked tokens and images with several kinds of attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import lightning as L
from jsonargparse.typing import PositiveInt

from experiments.data.ngrams import ngram_bits
from experiments.papers.diffuser.documents import CONFIGS
from experiments.papers.local_data import local_questions
from experiments.papers.study import (
    OUT,
    SHIPPED,
    Attention,
    Runs,
    ScaleName,
    Study,
    Table,
    at,
    at_scale,
    chosen,
    data_of,
    name_of,
)
from graphattn.patterns import Full, SlidingWindow, get

FULL, NO_DIAGONAL, ONE_HOP, DIFFUSER = 'full', 'full, no diagonal', 'Diffuser, 1 hop', 'Diffuser'
COUNT = {'smoke': 4, 'small': 16, 'paper': 64}  # number of edges for each of Diffuser's three kinds


def attentions(count: int) -> dict[str, Attention]:
    """Return kinds of attention by name, with ``count`` keys for each of Diffuser's edges."""
    diffuser = Attention('diffuser', get('diffuser', window=count, num_global=count,
                                         num_random=count, cls_global=True))
    return {FULL: Attention('full', Full()),
            NO_DIAGONAL: Attention('no_diagonal', Full() - SlidingWindow(0)),
            'Longformer': Attention('longformer', get('longformer', radius=count, num_global=1)),
            'BigBird': Attention('bigbird', get('bigbird', block=count // 2)),
            ONE_HOP: diffuser, DIFFUSER: diffuser.diffused()}


class Asked(NamedTuple):
    """What a command asks for: a scale, data sets, kinds of attention and seeds."""

    study: Study
    sets: tuple[str, ...]
    kinds: dict[str, Attention]
    seeds: range

    @property
    def is_paper(self) -> bool:
        return self.study.scale == 'paper'

    def rows(self, data: str, runs: Runs, metrics: dict[str, tuple[str, float]],
             printed: dict[str, dict[str, float]]) -> list[dict]:
        """Train each kind of attention on a data set; printed results are by their column."""
        return [{'set': data, 'attention': name, **runs.scored(attention, self.seeds, metrics),
                 **{column: found.get(name) for column, found in printed.items() if self.is_paper}}
                for name, attention in self.kinds.items()]

    def data(self, runs: Runs) -> L.LightningDataModule:
        return data_of(runs.trained(next(iter(self.kinds.values())), 0))

    def questions(self, kind: str, files: dict[str, str]) -> dict[str, Runs]:
        """Return the trainings on each data set, or below the paper's scale on a stand-in.

        The stand-in has a file for each part.
        """
        if self.is_paper:
            return {name: Runs(self.study, name, (SHIPPED / kind / f'{name}.yaml',))
                    for name in self.sets}
        folder, name = local_questions(self.study), f'local_{kind}'
        options = [text for part, file in files.items() for text in (
            f'--data.init_args.questions.init_args.{part}', str(folder / file))]
        return {name: Runs(self.study, name, at_scale(CONFIGS, self.study.scale, f'{kind}.yaml'),
                           (*options, *self.study.cache))}


def task_study(*num_seeds: int, sets: dict[ScaleName, Sequence[str]],
               names: dict[ScaleName, Sequence[str]], own: dict[str, Attention] | None = None
               ) -> Callable[[Callable[[Asked], Table]], Callable[..., None]]:
    """Make a function of what is asked for a command, with defaults by scale."""
    all_sets, default, others = sets, names, own or {}

    def command(table: Callable[[Asked], Table]) -> Callable[..., None]:
        def main(scale: ScaleName = 'small', sets: list[str] | None = None,
                 names: list[str] | None = None, seeds: PositiveInt | None = None,
                 out: Path = OUT) -> None:
            """Train a model with each kind of attention on each data set.

            Args:
                scale: Scale of the study: smoke, small or paper.
                sets: Data sets of the scale.
                names: Names of the kinds of attention.
                seeds: Number of trainings of each kind of attention.
                out: The folder of all studies.
            """
            study, known = Study(name_of(table), scale, out), attentions(COUNT[scale]) | others
            asked = Asked(
                study, chosen('sets', sets or all_sets[scale], all_sets[scale]),
                {name: known[name] for name in chosen('names', names or default[scale], known)},
                at(scale, num_seeds, seeds))
            study.report(table(asked))
        return main
    return command


def counting_rows(learn: list, test: list, orders: Sequence[int],
                  num_symbols: int = 256) -> list[dict]:
    """Return rows of n-grams, which predict each byte of ``test`` from as many bytes before it."""
    return [{'attention': f'bytes, {order + 1}-grams' if order else 'bytes, unigrams',
             'bits per byte': ngram_bits(learn, test, order, num_symbols)} for order in orders]
