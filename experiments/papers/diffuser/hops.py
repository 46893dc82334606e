"""Effect of the number of hops and of the teleport probability (Fig. S.5)."""

from experiments.papers.diffuser.documents import METRICS, Documents
from experiments.papers.figures import curves
from experiments.papers.study import HOPS, TELEPORT, Table

NUM_HOPS = {'smoke': (2,), 'small': (1, 2, 3, 5, 8), 'paper': (1, 2, 3, 4, 5, 6, 8, 10)}
TELEPORTS = {'smoke': (0.5,), 'small': (0., 0.1, 0.3, 0.6),
             'paper': (0., 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)}


def main(documents: Documents) -> Table:
    seeds, scale, diffuser = documents.each(1, 1, 3), documents.scale, documents.diffuser()
    settings = [('hops', hops, (hops, TELEPORT)) for hops in NUM_HOPS[scale]]
    settings += [('teleport', teleport, (HOPS, teleport)) for teleport in TELEPORTS[scale]]
    rows = [{'varied': varied, 'value': value,
             **documents.scored(diffuser.diffused(*setting), seeds)}
            for varied, value, setting in settings]
    plain = documents.scored(diffuser, seeds)
    lines = {f'{column}, one hop, no teleport': plain[column] for column in METRICS}
    title = ('The paper: more hops are better up to five, with a teleport of 0.1.\n'
             f'{documents.about}')
    figure = curves(rows, 'value', METRICS, title, panel='varied',
                    levels={'hops': lines, 'teleport': lines})
    return Table([*rows, {'varied': 'attention', 'value': 0., **plain}], figure, documents.about)
