"""Learned masks on a task where labels depend on neighbours at known distances."""

import statistics
from pathlib import Path

import numpy as np
import torch

from experiments.papers.figures import points
from experiments.papers.study import SOURCE, Runs, Study, Table, Trained, mean_and_spread, split
from experiments.runs.summary import read_summary
from graphattn.patterns import Mask, load_masks, save_masks

CONFIG = Path(__file__).parent / 'configs' / 'planted.yaml'
DISTANCES = {2, 5}  # as in the config
SMOKE = ('--trainer.max_epochs', '1', '--data.init_args.steps_per_epoch', '3',
         '--data.init_args.batch_size', '4')
LEARNED, FROZEN, RANDOM, FULL = 'DAM_s', 'its masks, trained anew', 'random diagonals', 'full'
FOUND = 'distance of query and key'


def main(study: Trained) -> Table:
    rows, kept = [], []
    for seed in study.each(1, 3, 3):
        runs = train_seed(study, seed)
        on = distances_on(load_masks(runs[LEARNED] / 'masks.npz'))
        kept += [{'head': f'seed {seed}, head {head}', FOUND: distance}
                 for head, distances in enumerate(on) for distance in sorted(distances)]
        for name, run in runs.items():
            density = read_summary(run)['density'].values()
            rows.append({'seed': seed, 'masks': name, 'accuracy': read_summary(run)['accuracy'],
                         'sparsity': 1 - statistics.mean(density)})
        rows[-len(runs)] |= {'found': sorted(DISTANCES & set.union(*on)),
                             'left over': sorted(set.union(*on) - DISTANCES)}
    means = [{'seed': 'mean', 'masks': name,
              **mean_and_spread('accuracy', [row['accuracy'] for row in own]),
              'sparsity': statistics.mean(row['sparsity'] for row in own)}
             for name, own in split(rows, 'masks').items()]
    planted = {FOUND: {f'planted: {distance}': distance for distance in sorted(DISTANCES)}}
    return Table(rows + means, points(kept, 'head', [FOUND], 'Distances that learned masks keep',
                                      levels=planted))


def train_seed(study: Study, seed: int) -> dict[str, Path]:
    """Train along masks that are learned, learned before, and random, and along all pairs."""
    runs = Runs(study, 'planted', (CONFIG,), SMOKE if study.scale == 'smoke' else ())
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
    return [{d for d, digit in enumerate(mask.values) if digit == '1'} for mask in masks]


def random_diagonals(masks: tuple[Mask, ...], seed: int) -> tuple[Mask, ...]:
    """Return masks of random diagonals, of nearly as many pairs as each of ``masks``."""
    rng, drawn = np.random.default_rng(seed), []
    for mask in masks:
        num_pairs = mask.layout.multiplicity()[:mask.layout.num_values].numpy()
        left = sum(size for size, digit in zip(num_pairs, mask.values) if digit == '1')
        is_on = torch.zeros(len(num_pairs), dtype=torch.bool)
        for distance in rng.permutation(len(num_pairs)):
            if num_pairs[distance] <= left:
                is_on[distance] = True
                left -= num_pairs[distance]
        drawn.append(Mask(mask.layout, is_on))
    return tuple(drawn)
