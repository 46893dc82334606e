"""Density estimation of images, byte by byte (Diffuser, Table S.5)."""

from experiments.papers.diffuser.tasks import DIFFUSER, FULL, ONE_HOP, Tasks
from experiments.papers.figures import bars
from experiments.papers.study import SHIPPED, Runs, Table, chosen

SETS = {'smoke': ('digits',), 'small': ('digits',), 'paper': ('cifar10', 'imagenet64')}
NAMES = {'smoke': (DIFFUSER,), 'small': (FULL, ONE_HOP, DIFFUSER),
         'paper': (FULL, ONE_HOP, DIFFUSER)}
BITS = {'bits per byte': ('bits_per_dim', 1.)}
PAPER = {'CIFAR-10, paper': {DIFFUSER: 2.78, 'Sparse Transformer': 2.80, 'PixelSNAIL': 2.85,
                             'PixelCNN++': 2.92, 'PixelCNN': 3.03},
         'ImageNet-64, paper': {DIFFUSER: 3.44, 'Sparse Transformer': 3.44, 'SPN': 3.52,
                                'PixelCNN': 3.57, 'Parallel Multiscale': 3.70}}


def main(tasks: Tasks) -> Table:
    kinds, sets, rows = tasks.kinds(NAMES), SETS[tasks.scale], []
    for kind in chosen('sets', tasks.sets or sets, sets):
        shipped = SHIPPED / f'density/{kind}.yaml'
        runs = Runs(tasks, f'density-{kind}', (shipped,) if tasks.scale == 'paper' else
                    tasks.configs('diffuser', f'density/{kind}'))
        rows += tasks.rows(kind, runs, kinds, tasks.each(1, 3, 1), BITS, PAPER)
    about = ('CIFAR-10 and ImageNet' if tasks.scale == 'paper' else
             'a stand-in: digits of 17 grey levels')
    figure = bars(rows, 'attention', [*BITS], f'Bits per byte of an image.\n{about}', panel='set')
    others = dict.fromkeys(name for own in PAPER.values() for name in own if name not in kinds)
    return Table(rows + [{'set': 'as printed', 'attention': name, **{
        column: own.get(name) for column, own in PAPER.items()}}
        for name in others if tasks.scale == 'paper'], figure, about)
