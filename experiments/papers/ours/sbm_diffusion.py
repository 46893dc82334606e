r"""Diffusion along edges that every head samples. No paper has this combination.

    graphattn study sbm_diffusion --scale small

The study trains block models (SBM-Transformer) with a local window, with one hop and with five hops
(Diffuser), and with and without a penalty on density (SBM, Sec. 5.2). It asks whether several hops
need fewer edges.
"""

from experiments.papers.diffuser.documents import METRICS, Documents, document_study
from experiments.papers.figures import bars
from experiments.papers.study import Table
from experiments.runs.command_line import run_function

DENSITY_WEIGHTS = (0., 1.)
MAX_LENGTH = {'smoke': 64, 'small': 256, 'paper': 4096}


@document_study(1, 1, 3)
def main(documents: Documents, seeds: range) -> Table:
    length, rows = MAX_LENGTH[documents.study.scale], []
    for density_weight in DENSITY_WEIGHTS:
        sampled = documents.block_model(density_weight, length)
        for attention in (sampled, sampled.diffused()):
            hops = 'one hop' if attention.hops == 1 else f'{attention.hops} hops'
            rows.append({'attention': f'{hops}, penalty {density_weight:g}', 'hops': attention.hops,
                         'penalty': density_weight, **documents.scored(attention, seeds)})
    about = f'{documents.about}; cut to {length} tokens'
    title = f'Sampled edges, one hop and several.\n{about}'
    return Table(rows, bars(rows, 'attention', METRICS, title), about)


if __name__ == '__main__':
    run_function(main)
