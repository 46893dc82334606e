r"""Density estimation of images, byte by byte (Diffuser, Table S.5).

    python -m experiments.papers.diffuser.image_density --scale small

The study reports the bits per byte of an image, given the bytes before. It compares them with
n-grams of bytes and with PNG. The scale ``paper`` uses CIFAR-10 and ImageNet at 64 x 64 pixels,
which must be downloaded first. Smaller scales use stand-ins, scikit-learn's digits and pieces of
its photographs. Each run's folder contains samples of its model in samples.png.
"""

from __future__ import annotations

from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.data.ngrams import png_bits, sequences_of
from experiments.data.sequences import SequenceData
from experiments.papers.diffuser.document_runs import CONFIGS
from experiments.papers.diffuser.task_runs import (
    COUNT,
    DIFFUSER,
    FULL,
    TaskRuns,
    attentions,
    counting_rows,
)
from experiments.papers.figures import bars
from experiments.papers.runs import SHIPPED, at_scale, chosen
from experiments.papers.study import ScaleName, Study, data_of
from experiments.runs.command_line import run_function

SEEDS = {'smoke': 1, 'small': 3, 'paper': 1}
SETS = {'smoke': ('digits',), 'small': ('digits', 'pictures'), 'paper': ('cifar10', 'imagenet64')}
DEFAULT = {'smoke': (DIFFUSER,), 'small': (FULL, 'Diffuser, 1 hop', DIFFUSER),
           'paper': (FULL, 'Diffuser, 1 hop', DIFFUSER)}
ORDERS = (0, 1, 3)  # numbers of context bytes of the n-grams
BITS = {'bits per byte': ('bits_per_dim', 1.)}
PAPER = {'CIFAR-10': {DIFFUSER: 2.78, 'Sparse Transformer': 2.80, 'PixelSNAIL': 2.85,
                      'PixelCNN++': 2.92, 'PixelCNN': 3.03},
         'ImageNet-64': {DIFFUSER: 3.44, 'Sparse Transformer': 3.44, 'SPN': 3.52, 'PixelCNN': 3.57,
                         'Parallel Multiscale': 3.70}}


def main(scale: ScaleName = 'small', sets: list[str] | None = None,
         names: list[str] | None = None, seeds: PositiveInt | None = None,
         out: Path = Path('runs/studies')) -> None:
    """Train a model with each kind of attention on each data set.

    Args:
        scale: Scale of the study: smoke, small or paper.
        sets: Data sets: digits and pictures, or cifar10 and imagenet64 at the scale paper.
        names: Names of the kinds of attention.
        seeds: Number of trainings of each kind of attention.
        out: The folder of all studies.
    """
    study = Study('image_density', scale, out)
    known = attentions(COUNT[scale])
    names = chosen('names', names or DEFAULT[scale], known)
    rows = []
    for kind in chosen('sets', sets or SETS[scale], SETS[scale]):
        name = f'density/{kind}.yaml'
        configs = (SHIPPED / name,) if scale == 'paper' else at_scale(CONFIGS, scale, name)
        runs = TaskRuns(study, f'density-{kind}', configs)
        for name in names:
            rows.append({'set': kind, 'attention': name,
                         **runs.scored(known[name], range(seeds or SEEDS[scale]), BITS), **{
                             f'{what}, paper': figures.get(name)
                             for what, figures in PAPER.items() if scale == 'paper'}})
        data = data_of(runs.trained(known[names[0]], 0))
        rows += [{'set': kind, **row} for row in counted(data.source.read(data.max_length))]
    rows += [{'set': 'as printed', 'attention': name, **{
        f'{what}, paper': own.get(name) for what, own in PAPER.items()}}
        for name in dict.fromkeys(name for own in PAPER.values() for name in own)
        if scale == 'paper' and name not in names]
    about = 'CIFAR-10 and ImageNet' if scale == 'paper' else (
        'stand-ins: digits of 17 grey levels, pieces of two photographs')
    shown = [row for row in rows if 'bits per byte' in row]
    title = f'Bits per byte of an image; in grey, n-grams and PNG.\n{about}'
    study.report(rows, bars(shown, 'attention', [*BITS], title, panel='set'), about)


def counted(data: SequenceData) -> list[dict]:
    """Return the rows of two baselines, n-grams and PNG, with the bits per byte of each on the test
    part.

    The n-grams are counted in the training part.
    """
    learn, test = (sequences_of(data.parts[part]) for part in ('train', 'test'))
    return [*counting_rows(learn, test, ORDERS, data.num_tokens),
            {'attention': 'PNG', 'bits per byte': png_bits(data.parts['test'], data.shape)}]


if __name__ == '__main__':
    run_function(main)
