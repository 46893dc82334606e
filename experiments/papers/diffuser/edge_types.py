"""Effect of the numbers of local, global and random edges (Fig. S.6)."""

from experiments.papers.diffuser.documents import METRICS, Documents
from experiments.papers.figures import curves
from experiments.papers.study import Table

SHARES = {'smoke': (0, 1), 'small': (0, 1, 2), 'paper': (0, 0.25, 0.5, 1, 1.5, 2)}
KINDS = {'window': 'local', 'num_global': 'global', 'num_random': 'random'}


def main(documents: Documents) -> Table:
    seeds = documents.each(1, 1, 3)
    count = documents.count
    counts = [round(share * count) for share in SHARES[documents.scale]]
    settings = [(f'{name} edges', number, {kind: number}) for kind, name in KINDS.items()
                for number in counts]
    settings += [(f'random of {2 * count} random and global', num_random,
                  {'num_random': num_random, 'num_global': 2 * count - num_random})
                 for num_random in (0, count, 2 * count)]
    rows = [{'varied': varied, 'value': value,
             **documents.scored(documents.diffuser(**setting).diffused(), seeds)}
            for varied, value, setting in settings]
    title = ('The paper: each kind of edges has diminishing returns, and a mixture of random and '
             f'global edges is best.\n{documents.about}')
    return Table(rows, curves(rows, 'value', METRICS, title, panel='varied'), documents.about)
