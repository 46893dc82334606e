r"""Effect of the numbers of local, global and random edges (Fig. S.6).

    python -m experiments.papers.diffuser.edge_types --scale small

The study varies the number of one kind of edges at a time, with default numbers of the other kinds,
and then the ratio of random to global edges. The paper finds diminishing returns of each kind, and
that a mixture of random and global edges is best.
"""

from __future__ import annotations

from experiments.papers.diffuser.document_runs import METRICS, document_study
from experiments.papers.figures import curves
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function

SEEDS = {'smoke': 1, 'small': 1, 'paper': 3}
SHARES = {'smoke': (0, 1), 'small': (0, 1, 2), 'paper': (0, 0.25, 0.5, 1, 1.5, 2)}
KINDS = {'window': 'local', 'num_global': 'global', 'num_random': 'random'}


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train a classifier for each number of edges of each kind.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`document_study`.
    """
    runs, seeds = document_study('edge_types', scale, SEEDS[scale], **kwargs)
    counts = [round(share * runs.count) for share in SHARES[scale]]
    settings = [(f'{name} edges', count, {kind: count}) for kind, name in KINDS.items()
                for count in counts]
    both = 2 * runs.count
    settings += [(f'random of {both} random and global', num_random,
                  {'num_random': num_random, 'num_global': both - num_random})
                 for num_random in (0, runs.count, both)]
    rows = [{'varied': varied, 'value': count,
             **runs.scored(runs.diffuser(**setting).diffused(), seeds)}
            for varied, count, setting in settings]
    title = ('The paper: each kind of edges has diminishing returns, and a mixture of random and '
             f'global edges is best.\n{runs.about}')
    runs.study.report(rows, curves(rows, 'value', METRICS, title, panel='varied'), runs.about)


if __name__ == '__main__':
    run_function(main)
