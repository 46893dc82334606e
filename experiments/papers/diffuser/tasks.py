"""Models of questions, choices, masked tokens and images with several kinds of attention."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.papers.local_data import local_questions
from experiments.papers.study import SHIPPED, Attention, Runs, Trained, chosen
from graphattn.patterns import Full, SlidingWindow, get, randomly_dropped

FULL, NO_DIAGONAL, ONE_HOP, DIFFUSER = 'full', 'full, no diagonal', 'Diffuser, 1 hop', 'Diffuser'
DROPPED = 'full, randomly dropped'
COUNT = {'smoke': 4, 'small': 16, 'paper': 64}  # number of edges for each of Diffuser's three kinds


@dataclass(frozen=True)
class Attentions(Trained):
    """A study of several kinds of attention.

    Args:
        names: Names of the kinds of attention.
    """

    names: list[str] | None = None

    def kinds(self, default: dict[str, Sequence[str]],
              own: dict[str, Attention] | None = None) -> dict[str, Attention]:
        count = COUNT[self.scale]
        diffuser = Attention('diffuser', get('diffuser', window=count, num_global=count,
                                             num_random=count, cls_global=True))
        known = {
            FULL: Attention('full', Full()),
            NO_DIAGONAL: Attention('no_diagonal', Full() - SlidingWindow(0)),
            DROPPED: Attention('randomly_dropped', randomly_dropped()),
            'Longformer': Attention('longformer', get('longformer', radius=count, num_global=1)),
            'BigBird': Attention('bigbird', get('bigbird', block=count // 2)),
            ONE_HOP: diffuser, DIFFUSER: diffuser.diffused(), **(own or {})}
        return {name: known[name]
                for name in chosen('names', self.names or default[self.scale], known)}


@dataclass(frozen=True)
class Tasks(Attentions):
    """A study of several kinds of attention on data sets.

    Args:
        sets: Data sets of the scale.
    """

    sets: list[str] | None = None

    def rows(self, data: str, runs: Runs, kinds: dict[str, Attention], seeds: range,
             metrics: dict[str, tuple[str, float]],
             printed: dict[str, dict[str, float]]) -> list[dict]:
        """Train each kind of attention on a data set; printed results are by their column."""
        return [{'set': data, 'attention': name, **runs.scored(attention, seeds, metrics),
                 **{column: found.get(name) for column, found in printed.items()
                    if self.scale == 'paper'}}
                for name, attention in kinds.items()]

    def questions(self, kind: str, sets: Sequence[str],
                  stand_ins: dict[str, dict[str, str]]) -> list[Runs]:
        """Return trainings on the data sets, or below the paper's scale on files of stand-ins."""
        known = sets if self.scale == 'paper' else [*stand_ins]
        sets = chosen('sets', self.sets or known, known, at=f' at the scale {self.scale}')
        if self.scale == 'paper':
            return [Runs(self, name, (SHIPPED / kind / f'{name}.yaml',)) for name in sets]
        folder = local_questions(self)
        return [Runs(self, f'local_{name}',
                     self.configs('diffuser', kind) + self.configs('diffuser', name), (
                         *(text for part, file in stand_ins[name].items() for text in (
                             f'--data.init_args.questions.init_args.{part}', str(folder / file))),
                         *self.cache)) for name in sets]
