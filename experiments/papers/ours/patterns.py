r"""Comparison of patterns, including patterns of your own, on handwritten digits.

    graphattn study patterns --import mine --patterns '[comb, "bigbird(block=4)", Full()]'

The study trains the same encoder along each pattern, and reports its test accuracy and the share of
pairs that are edges. The papers have no such study, so the scale ``paper`` equals ``small``.
"""

from __future__ import annotations

from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.papers.figures import bars
from experiments.papers.study import (
    ACCURACY,
    OUT,
    SHIPPED,
    ScaleName,
    Study,
    Table,
    at,
    over_seeds,
    source_option,
)
from experiments.runs.command_line import run_function
from graphattn.patterns import parse

CONFIG = str(SHIPPED / 'digits' / 'bigbird.yaml')
SMOKE = ('--trainer.max_epochs', '1', '--trainer.limit_train_batches', '2',
         '--trainer.limit_val_batches', '1', '--trainer.limit_test_batches', '1')
ALWAYS = 'bigbird(block=4, num_global=1, num_random=2)', 'Full()'


def main(scale: ScaleName = 'small', patterns: list[str] = (), seeds: PositiveInt | None = None,
         out: Path = OUT) -> None:
    """Train along each pattern with each seed, and compare the results.

    Args:
        scale: Scale of the study: smoke, small or paper.
        patterns: Names or expressions of patterns. BigBird's pattern and full attention are always
            compared too.
        seeds: Number of trainings of each pattern.
        out: The folder of all studies.
    """
    compared = [*dict.fromkeys([*patterns, *ALWAYS])]
    for pattern in compared:
        parse(pattern)  # an unknown pattern is refused before the first training
    study = Study('patterns', scale, out)
    sizes = SMOKE if scale == 'smoke' else ()

    def trained(pattern: str, seed: int) -> Path:
        name = ''.join(letter if letter.isalnum() else '-' for letter in pattern)
        return study.trained(f'digits-{name}-{seed}', '--config', CONFIG, *sizes,
                             '--seed_everything', str(seed), source_option(pattern))

    rows = [{'pattern': pattern, **over_seeds(trained(pattern, seed)
                                              for seed in at(scale, (1, 3, 3), seeds))}
            for pattern in compared]
    study.report(Table(rows, bars(rows, 'pattern', ACCURACY, 'Test accuracy on handwritten '
                                                             'digits')))


if __name__ == '__main__':
    run_function(main)
