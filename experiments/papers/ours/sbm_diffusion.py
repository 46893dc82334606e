r"""Diffusion along edges that every head samples. No paper has this combination.

    python -m experiments.papers.ours.sbm_diffusion --scale small

The study trains block models (SBM-Transformer) with a local window, with one hop and with five hops
(Diffuser), and with and without a penalty on density (SBM, Sec. 5.2). It asks whether several hops
need fewer edges.
"""

from __future__ import annotations

from experiments.papers.diffuser.document_runs import METRICS, document_study
from experiments.papers.figures import bars
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function

SEEDS = {'smoke': 1, 'small': 1, 'paper': 3}
DENSITY_WEIGHTS = (0., 1.)
MAX_LENGTH = {'smoke': 64, 'small': 256, 'paper': 4096}


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train classifiers whose heads sample their edges, with one hop and with several hops.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`document_study`.
    """
    runs, seeds = document_study('sbm_diffusion', scale, SEEDS[scale], **kwargs)
    rows = []
    for density_weight in DENSITY_WEIGHTS:
        sampled = runs.block_model(density_weight, MAX_LENGTH[scale])
        for attention in (sampled, sampled.diffused()):
            hops = 'one hop' if attention.hops == 1 else f'{attention.hops} hops'
            rows.append({'attention': f'{hops}, penalty {density_weight:g}', 'hops': attention.hops,
                         'penalty': density_weight, **runs.scored(attention, seeds)})
    about = f'{runs.about}; cut to {MAX_LENGTH[scale]} tokens'
    title = f'Sampled edges, one hop and several.\n{about}'
    runs.study.report(rows, bars(rows, 'attention', METRICS, title), about)


if __name__ == '__main__':
    run_function(main)
