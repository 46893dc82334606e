r"""Density estimation of images, byte by byte (Diffuser, Table S.5).

    graphattn study image_density --scale small

The study reports the bits per byte of an image, given the bytes before. It compares them with
n-grams of bytes and with PNG. The scale ``paper`` uses CIFAR-10 and ImageNet at 64 x 64 pixels,
which must be downloaded first. Smaller scales use stand-ins, scikit-learn's digits and pieces of
its photographs. Each run's folder contains samples of its model in samples.png.
"""

from experiments.data.ngrams import png_bits, sequences_of
from experiments.data.sequences import SequenceData
from experiments.papers.diffuser.documents import CONFIGS
from experiments.papers.diffuser.tasks import (
    DIFFUSER,
    FULL,
    ONE_HOP,
    Asked,
    counting_rows,
    task_study,
)
from experiments.papers.figures import bars
from experiments.papers.study import SHIPPED, Runs, Table, at_scale
from experiments.runs.command_line import run_function

SETS = {'smoke': ('digits',), 'small': ('digits', 'pictures'), 'paper': ('cifar10', 'imagenet64')}
NAMES = {'smoke': (DIFFUSER,), 'small': (FULL, ONE_HOP, DIFFUSER),
         'paper': (FULL, ONE_HOP, DIFFUSER)}
ORDERS = (0, 1, 3)  # numbers of context bytes of the n-grams
BITS = {'bits per byte': ('bits_per_dim', 1.)}
PAPER = {'CIFAR-10, paper': {DIFFUSER: 2.78, 'Sparse Transformer': 2.80, 'PixelSNAIL': 2.85,
                             'PixelCNN++': 2.92, 'PixelCNN': 3.03},
         'ImageNet-64, paper': {DIFFUSER: 3.44, 'Sparse Transformer': 3.44, 'SPN': 3.52,
                                'PixelCNN': 3.57, 'Parallel Multiscale': 3.70}}


@task_study(1, 3, 1, sets=SETS, names=NAMES)
def main(asked: Asked) -> Table:
    rows = []
    for kind in asked.sets:
        name = f'density/{kind}.yaml'
        configs = ((SHIPPED / name,) if asked.is_paper else
                   at_scale(CONFIGS, asked.study.scale, name))
        runs = Runs(asked.study, f'density-{kind}', configs)
        rows += asked.rows(kind, runs, BITS, PAPER)
        data = asked.data(runs)
        rows += [{'set': kind, **row} for row in counted(data.source.read(data.max_length))]
    shown = list(rows)
    rows += [{'set': 'as printed', 'attention': name, **{
        column: own.get(name) for column, own in PAPER.items()}}
        for name in dict.fromkeys(name for own in PAPER.values() for name in own)
        if asked.is_paper and name not in asked.kinds]
    about = ('CIFAR-10 and ImageNet' if asked.is_paper else
             'stand-ins: digits of 17 grey levels, pieces of two photographs')
    title = f'Bits per byte of an image; in grey, n-grams and PNG.\n{about}'
    return Table(rows, bars(shown, 'attention', [*BITS], title, panel='set'), about)


def counted(data: SequenceData) -> list[dict]:
    """Return the rows of n-grams, which are counted in the training part, and of PNG."""
    learn, test = (sequences_of(data.parts[part]) for part in ('train', 'test'))
    return [*counting_rows(learn, test, ORDERS, data.num_tokens),
            {'attention': 'PNG', 'bits per byte': png_bits(data.parts['test'], data.shape)}]


if __name__ == '__main__':
    run_function(main)
