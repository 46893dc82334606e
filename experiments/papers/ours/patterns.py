"""Comparison of patterns, including patterns of your own, on handwritten digits."""

from dataclasses import dataclass, field
from pathlib import Path

from experiments.papers import study as studies
from experiments.papers.figures import bars
from graphattn.patterns import parse

CONFIG = str(studies.SHIPPED / 'digits' / 'bigbird.yaml')
SMOKE = ('--trainer.max_epochs', '1', '--trainer.limit_train_batches', '2',
         '--trainer.limit_val_batches', '1', '--trainer.limit_test_batches', '1')
ALWAYS = 'bigbird(block=4, num_global=1, num_random=2)', 'Full()'


@dataclass(frozen=True)
class Patterns(studies.Trained):
    """A study of patterns.

    Args:
        patterns: Names or expressions of patterns. BigBird's pattern and full attention are always
            compared too.
    """

    patterns: list[str] = field(default_factory=list)

    def along(self, pattern: str, seed: int) -> Path:
        name = ''.join(letter if letter.isalnum() else '-' for letter in pattern)
        return self.trained(f'digits-{name}-{seed}', '--config', CONFIG,
                            *(SMOKE if self.scale == 'smoke' else ()),
                            '--seed_everything', str(seed), studies.source_option(pattern))


def main(study: Patterns) -> studies.Table:
    compared = [*dict.fromkeys([*study.patterns, *ALWAYS])]
    for pattern in compared:
        parse(pattern)  # an unknown pattern is refused before the first training
    rows = [{'pattern': pattern, **studies.over_seeds(study.along(pattern, seed)
                                                      for seed in study.each(1, 3, 3))}
            for pattern in compared]
    return studies.Table(rows, bars(rows, 'pattern', [*studies.ACCURACY, studies.DENSITY],
                                    'Patterns on handwritten digits'))
