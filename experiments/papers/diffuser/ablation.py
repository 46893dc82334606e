"""Ablation of the parts of Diffuser, one part at a time (Table S.7)."""

from experiments.papers.diffuser.documents import Documents
from experiments.papers.study import Table

# The paper's average accuracies on Long Range Arena, in per cent.
PAPER = {'Diffuser': 57.31, 'without local edges': 52.65, 'without random edges': 55.74,
         'without global edges': 55.19, 'without diffusion': 52.36, 'evenly spaced keys': 57.07}


def main(documents: Documents) -> Table:
    seeds = documents.each(1, 1, 3)
    kinds = {'Diffuser': documents.diffuser().diffused(),
             'without local edges': documents.diffuser(window=0).diffused(),
             'without random edges': documents.diffuser(num_random=0).diffused(),
             'without global edges': documents.diffuser(num_global=0).diffused(),
             'without diffusion': documents.diffuser(),
             'evenly spaced keys': documents.diffuser(uniform=True).diffused()}
    return documents.compared('model', kinds, seeds, 'The paper: diffusion and local edges matter '
                              'most; even spacing does no harm.', ('paper, average', PAPER))
