r"""Effect of the number of hops and of the teleport probability (Fig. S.5).

    python -m experiments.papers.diffuser.hops --scale small

The study trains classifiers of long documents along Diffuser's edges. The paper finds that more
hops are better up to five, and that five hops with a teleport of 0.1 are best.
"""

from __future__ import annotations

from experiments.papers.diffuser.document_runs import (
    HOPS,
    METRICS,
    TELEPORT,
    document_study,
)
from experiments.papers.figures import curves
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function

SEEDS = {'smoke': 1, 'small': 1, 'paper': 3}
NUM_HOPS = {'smoke': (1, 2), 'small': (1, 2, 3, 5, 8), 'paper': (1, 2, 3, 4, 5, 6, 8, 10)}
TELEPORTS = {'smoke': (0.1, 0.5), 'small': (0., 0.1, 0.3, 0.6),
             'paper': (0., 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)}


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train a classifier for each number of hops and each teleport.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`document_study`.
    """
    runs, seeds = document_study('hops', scale, SEEDS[scale], **kwargs)
    settings = [('hops', hops, (hops, TELEPORT)) for hops in NUM_HOPS[scale]]
    settings += [('teleport', teleport, (HOPS, teleport)) for teleport in TELEPORTS[scale]]
    rows = [{'varied': varied, 'value': value,
             **runs.scored(runs.diffuser().diffused(*setting), seeds)}
            for varied, value, setting in settings]
    plain = runs.scored(runs.diffuser(), seeds)
    title = ('The paper: more hops are better up to five, with a teleport of 0.1.\n'
             f'{runs.about}')
    levels = {f'{column}, one hop, no teleport': plain[column] for column in METRICS}
    figure = curves(rows, 'value', METRICS, title, panel='varied', levels=levels)
    runs.study.report([*rows, {'varied': 'attention', 'value': 0., **plain}], figure, runs.about)


if __name__ == '__main__':
    run_function(main)
