r"""Attention diffusion along the patterns of Diffuser, BigBird and Longformer (Table S.3).

    python -m experiments.papers.diffuser.diffusion --scale small

The study trains classifiers of long documents along each pattern, with one hop and with five hops,
and with full attention. Nothing is pre-trained, whereas the paper starts from RoBERTa's weights.

The class is predicted from the token [CLS]. In BigBird and Longformer, [CLS] is global, so that its
first layer sees the whole document. In the code of Diffuser's authors, [CLS] is never global.
Diffuser is therefore trained both ways.
"""

from __future__ import annotations

from experiments.papers.diffuser.document_runs import document_study
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function

SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
# The paper's average F1 over five sets of documents, in per cent.
PAPER = {'BigBird': 80.14, 'BigBird, diffused': 80.84, 'Longformer': 80.86,
         'Longformer, diffused': 81.24, 'Diffuser': 81.80}


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train a classifier of documents with each kind of attention.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`document_study`.
    """
    runs, seeds = document_study('diffusion', scale, SEEDS[scale], **kwargs)
    local_cls = runs.diffuser(cls_global=False)
    kinds = {'full': runs.full,
             'BigBird': runs.bigbird, 'BigBird, diffused': runs.bigbird.diffused(),
             'Longformer': runs.longformer, 'Longformer, diffused': runs.longformer.diffused(),
             'Diffuser, one hop': runs.diffuser(), 'Diffuser': runs.diffuser().diffused(),
             'Diffuser, one hop, [CLS] not global': local_cls,
             'Diffuser, [CLS] not global': local_cls.diffused()}
    runs.compared('attention', kinds, seeds, 'The paper: diffusion helps all three patterns, and '
                  'Diffuser is the best.', ('paper, average F1', PAPER))


if __name__ == '__main__':
    run_function(main)
