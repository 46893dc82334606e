r"""Comparison of patterns, including patterns of your own, on handwritten digits.

    graphattn study patterns --import mine --patterns '[comb, "bigbird(block=4)", Full()]'

The study trains the same encoder along each pattern, and reports its test accuracy and the share of
pairs that are edges. The papers have no such study, so the scale ``paper`` equals ``small``.
"""

from __future__ import annotations

import json
from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.papers.figures import bars
from experiments.papers.runs import SHIPPED, SOURCE, over_seeds, pattern_source
from experiments.papers.study import ScaleName, Study
from experiments.runs.command_line import run_function
from graphattn.patterns import parse

CONFIG = SHIPPED / 'digits' / 'bigbird.yaml'
SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
SIZES = {'smoke': ('--trainer.max_epochs', '1', '--trainer.limit_train_batches', '2',
                   '--trainer.limit_val_batches', '1', '--trainer.limit_test_batches', '1'),
         'small': (), 'paper': ()}
ACCURACY = 'accuracy, %'


def main(scale: ScaleName = 'small', patterns: list[str] = (), seeds: PositiveInt | None = None,
         out: Path = Path('runs/studies')) -> None:
    """Train along each pattern with each seed, and compare the results.

    Args:
        scale: Scale of the study: smoke, small or paper.
        patterns: Names or expressions of patterns. BigBird's pattern and full attention are always
            compared too.
        seeds: Number of trainings of each pattern.
        out: The folder of all studies.
    """
    chosen = [*dict.fromkeys([*patterns, 'bigbird(block=4, num_global=1, num_random=2)', 'Full()'])]
    for pattern in chosen:
        parse(pattern)  # an unknown pattern is refused before the first training
    study = Study('patterns', scale, out)
    rows = [{'pattern': pattern, **over_seeds(
        (train(study, pattern, seed) for seed in range(seeds or SEEDS[scale])),
        {ACCURACY: ('accuracy', 100.)})} for pattern in chosen]
    study.report(rows, bars(rows, 'pattern', [ACCURACY], 'Test accuracy on handwritten digits'))


def train(study: Study, pattern: str, seed: int) -> Path:
    """Train the encoder along one pattern, and return the folder of its run."""
    name = ''.join(letter if letter.isalnum() else '-' for letter in pattern)
    source = json.dumps(pattern_source(pattern))
    return study.trained(f'digits-{name}-{seed}', '--config', str(CONFIG), *SIZES[study.scale],
                         '--seed_everything', str(seed), f'{SOURCE}={source}')


if __name__ == '__main__':
    run_function(main)
