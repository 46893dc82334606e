"""Attention diffusion along the patterns of Diffuser, BigBird and Longformer (Table S.3)."""

from experiments.papers.diffuser.documents import Documents
from experiments.papers.study import Table

# The paper's average F1 over five sets of documents, in per cent.
PAPER = {'BERT': 74.36, 'RoBERTa': 78.26, 'BigBird': 80.14, 'BigBird, diffused': 80.84,
         'Longformer': 80.86, 'Longformer, diffused': 81.24, 'Diffuser': 81.80}


# The class is predicted from [CLS], which is global in BigBird and Longformer, and never in the
# authors' code of Diffuser. Nothing is pre-trained but what --weights names; the paper starts from
# RoBERTa's weights.
def main(documents: Documents) -> Table:
    seeds = documents.each(1, 3, 3)
    local_cls = documents.diffuser(cls_global=False)
    kinds = {**documents.kinds, 'Diffuser, one hop, [CLS] not global': local_cls,
             'Diffuser, [CLS] not global': local_cls.diffused()}
    return documents.compared('attention', kinds, seeds, 'The paper: diffusion helps all three '
                              'patterns, and Diffuser is the best.', ('paper, average F1', PAPER))
