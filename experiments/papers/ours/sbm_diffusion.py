"""Diffusion along edges that every head samples. No paper has this combination."""

from experiments.papers.diffuser.documents import METRICS, Documents
from experiments.papers.figures import bars
from experiments.papers.study import Table

DENSITY_WEIGHTS = {'smoke': (1.,), 'small': (0., 1.), 'paper': (0., 1.)}
MAX_LENGTH = {'smoke': 64, 'small': 256, 'paper': 4096}


def main(documents: Documents) -> Table:
    seeds = documents.each(1, 1, 3)
    length, rows = MAX_LENGTH[documents.scale], []
    for density_weight in DENSITY_WEIGHTS[documents.scale]:
        sampled = documents.block_model(density_weight, length)
        for attention in (sampled, sampled.diffused()):
            hops = 'one hop' if attention.hops == 1 else f'{attention.hops} hops'
            rows.append({'attention': f'{hops}, penalty {density_weight:g}', 'hops': attention.hops,
                         'penalty': density_weight, **documents.scored(attention, seeds)})
    about = f'{documents.about}; cut to {length} tokens'
    title = f'Sampled edges, one hop and several.\n{about}'
    return Table(rows, bars(rows, 'attention', METRICS, title), about)
