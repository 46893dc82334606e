r"""Structured masks on a task where labels depend on neighbours at known distances.

    python -m experiments.papers.sparsebert.planted --scale small

A token's label is the sign of a sum over its neighbours at known distances (:class:`Planted`). The
study trains one layer whose heads learn masks by diagonals (DAM_s). It reports the distances in the
frozen masks. It also compares the accuracy with that of random diagonals of the same sparsity, and
of full attention.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments.papers.figures import bars, panels_of, split
from experiments.papers.runs import SOURCE, Runs, mean_and_spread
from experiments.papers.study import ScaleName, Study
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary
from graphattn.patterns import Mask, load_masks, save_masks

CONFIG = str(Path(__file__).parent / 'configs' / 'planted.yaml')
DISTANCES = {2, 5}  # as in the config
SEEDS = {'smoke': [0], 'small': [0, 1, 2], 'paper': [0, 1, 2]}
SIZES = {'smoke': ['--trainer.max_epochs', '1', '--data.init_args.steps_per_epoch', '3',
                   '--data.init_args.batch_size', '4'],
         'small': [], 'paper': []}
LEARNED, FROZEN, RANDOM, FULL = 'DAM_s', 'its masks, trained anew', 'random diagonals', 'full'


def main(scale: ScaleName = 'small', out: Path = Path('runs/studies')) -> None:
    """Train the models of each seed, and report the distances in their masks.

    Args:
        scale: Scale of the study; the paper has no such experiment, so 'paper' equals 'small'.
        out: The folder of all studies.
    """
    study = Study('planted', scale, out)
    rows, masks_of_seed = [], {}
    for seed in SEEDS[scale]:
        runs = train_seed(study, seed)
        masks = load_masks(runs[LEARNED] / 'masks.npz')
        on = distances_on(masks)
        masks_of_seed[seed] = on
        for name, run in runs.items():
            density = read_summary(run)['density'].values()
            rows.append({'seed': seed, 'masks': name, 'accuracy': read_summary(run)['accuracy'],
                         'sparsity': 1 - statistics.mean(density)})
        rows[-len(runs)] |= {'found': sorted(DISTANCES & set.union(*on)),
                             'left over': sorted(set.union(*on) - DISTANCES)}
    means = mean_rows(rows)
    study.report(rows + means, draw(masks_of_seed),
                 accuracy=bars(means, 'masks', ['accuracy'], 'Test accuracy'))


def train_seed(study: Study, seed: int) -> dict[str, Path]:
    """Train a model with each kind of mask, and return the folders of the runs by kind.

    There are four kinds: masks that are learned in the training, fixed masks that an earlier
    training learned, random masks, and full attention.
    """
    runs = Runs(study, 'planted', (CONFIG,), tuple(SIZES[study.scale]))
    learned = runs.fit('learned', seed)
    random_file = study.folder / f'random-{seed}.npz'
    save_masks(random_file, random_diagonals(load_masks(learned / 'masks.npz'), seed))
    fixed = {FROZEN: learned / 'masks.npz', RANDOM: random_file, FULL: 'Full()'}
    return {LEARNED: learned, **{
        name: runs.fit(
            name.split()[0], seed, SOURCE, 'graphattn.sources.PatternSource',
            f'{SOURCE}.pattern', str(pattern), '--model.init_args.mask_weight', '0',
            '--model.init_args.mask_lr', 'null')
        for name, pattern in fixed.items()}}


def distances_on(masks: tuple[Mask, ...]) -> list[set[int]]:
    """Return for each head the set of distances between query and key that its mask keeps."""
    return [{d for d, digit in enumerate(mask.values) if digit == '1'} for mask in masks]


def random_diagonals(masks: tuple[Mask, ...], seed: int) -> tuple[Mask, ...]:
    """Return masks of random diagonals. Each has nearly the same number of pairs as the given mask
    of its head."""
    rng = np.random.default_rng(seed)
    return tuple(Mask(mask.layout, _random_diagonals(mask, rng)) for mask in masks)


def _random_diagonals(mask: Mask, rng: np.random.Generator) -> torch.Tensor:
    num_pairs = mask.layout.multiplicity()[:mask.layout.num_values].numpy()
    left = sum(size for size, digit in zip(num_pairs, mask.values) if digit == '1')
    is_on = torch.zeros(len(num_pairs), dtype=torch.bool)
    for distance in rng.permutation(len(num_pairs)):
        if num_pairs[distance] <= left:
            is_on[distance] = True
            left -= num_pairs[distance]
    return is_on


def mean_rows(rows: list[dict]) -> list[dict]:
    """Return the mean and the deviation over seeds for each kind of mask."""
    return [{'seed': 'mean', 'masks': name,
             **mean_and_spread('accuracy', [row['accuracy'] for row in own]),
             'sparsity': statistics.mean(row['sparsity'] for row in own)}
            for name, own in split(rows, 'masks').items()]


def draw(distances_of_seed: dict[int, list[set[int]]]) -> Figure:
    """Draw the distances that the learned mask of each seed and head keeps, beside the planted
    distances."""
    heads = {f'seed {seed}, head {head}': on for seed, of_heads in distances_of_seed.items()
             for head, on in enumerate(of_heads)}
    figure, (axes,) = panels_of(['distances that the learned masks keep (green: planted)'], '',
                                (6., 4.))
    for distance in DISTANCES:
        axes.axvspan(distance - 0.5, distance + 0.5, color='C2', alpha=0.2)
    for y, on in enumerate(heads.values()):
        axes.scatter(sorted(on), [y] * len(on), color='C0')
    axes.set(xlabel='distance of query and key', yticks=range(len(heads)), yticklabels=heads,
             ylim=(len(heads) - 0.5, -0.5))
    return figure


if __name__ == '__main__':
    run_function(main)
