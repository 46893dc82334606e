r"""Attention diffusion along the patterns of Diffuser, BigBird and Longformer (Table S.3).

    graphattn study diffusion --scale small

The study trains classifiers of long documents along each pattern, with one hop and with five hops,
and with full attention. Nothing is pre-trained, whereas the paper starts from RoBERTa's weights.

The class is predicted from the token [CLS]. In BigBird and Longformer, [CLS] is global, so that its
first layer sees the whole document. In the code of Diffuser's authors, [CLS] is never global.
Diffuser is therefore trained both ways.
"""

from experiments.papers.diffuser.documents import Documents, document_study
from experiments.papers.study import Table
from experiments.runs.command_line import run_function

# The paper's average F1 over five sets of documents, in per cent.
PAPER = {'BigBird': 80.14, 'BigBird, diffused': 80.84, 'Longformer': 80.86,
         'Longformer, diffused': 81.24, 'Diffuser': 81.80}


@document_study(1, 3, 3)
def main(documents: Documents, seeds: range) -> Table:
    local_cls = documents.diffuser(cls_global=False)
    kinds = {**documents.kinds, 'Diffuser, one hop, [CLS] not global': local_cls,
             'Diffuser, [CLS] not global': local_cls.diffused()}
    return documents.compared('attention', kinds, seeds, 'The paper: diffusion helps all three '
                              'patterns, and Diffuser is the best.', ('paper, average F1', PAPER))


if __name__ == '__main__':
    run_function(main)
