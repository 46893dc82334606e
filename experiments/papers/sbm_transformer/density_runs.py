"""Trainings of block models and of fixed edges, for the studies of density on Long Range Arena."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.data.sequences import SequenceData
from experiments.papers.runs import SHIPPED, SOURCE, Runs, at_scale, chosen, pattern_source
from experiments.papers.study import ScaleName, Study
from experiments.runs.config_file import built, laid_over
from experiments.tasks import LongRange
from graphattn.patterns import Pattern, SlidingWindow

CONFIGS = Path(__file__).parent / 'configs'
PROTOCOL = SHIPPED / 'lra' / 'sbm.yaml'
STAND_IN = 'digits'
TASKS = {'smoke': (STAND_IN,), 'small': (STAND_IN,),
         'paper': ('listops', 'text', 'retrieval', 'image', 'pathfinder')}
# The paper trains for 5,000 to 62,400 steps. In the 400 steps of the small scale, lambda = 1e-2
# removes a few of the edges, lambda = 1e-1 leaves 7 % of the pairs, and lambda = 1 leaves less than
# 1 %.
WEIGHTS = {'smoke': ('0', '1'), 'small': ('0', '1e-2', '1e-1', '1'),
           'paper': ('0', '1e-4', '1e-3', '1e-2', '1e-1')}
SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
SELF_LOOPS = SlidingWindow(0)


@dataclass(frozen=True)
class DensityRuns:
    """Trainings of models on one task of Long Range Arena. Runs with the same arguments are trained
    once.

    Args:
        study (Study): The study. Its scale determines the configs, and its folder contains the
            runs.
        task (str): A task of the scale, from ``TASKS``.
    """

    study: Study
    task: str

    def along(self, name: str, pattern: Pattern, seed: int) -> Path:
        """Train a model with one pattern in all heads of all layers, and return the folder of the
        run."""
        return self._runs.fit(name, seed, f'{SOURCE}={json.dumps(pattern_source(pattern))}')

    def sampled(self, weight: str, seed: int, self_loops: bool = False) -> Path:
        r"""Train a model whose heads sample their edges, and return the folder of the run.

        Args:
            weight (str): The weight :math:`\lambda` of the penalty on density.
            seed (int): Seed of initialisation, batches and sampled edges.
            self_loops (bool): Whether every token also attends to itself (``+I``).
        """
        fixed = [f'{SOURCE}.init_args.fixed', str(SELF_LOOPS)] if self_loops else []
        return self._runs.fit(f'sbm{"+I" * self_loops}-{weight}', seed,
                              '--model.init_args.density_weight', weight, *fixed)

    def read(self) -> SequenceData:
        """Read the data of the task.

        Raises:
            ValueError: A file is missing or malformed.
        """
        data = built(laid_over(*self._runs.configs), data=LongRange).data
        return data.source.read(data.max_length - data.cls)

    @cached_property
    def _runs(self) -> Runs:
        configs = PROTOCOL, PROTOCOL.with_suffix('') / f'{self.task}.yaml'
        if self.task == STAND_IN:
            configs = at_scale(CONFIGS, self.study.scale, 'long_range.yaml')
        return Runs(self.study, self.task, configs)


def density_study(
    name: str,
    scale: ScaleName,
    *,
    tasks: Sequence[str] | None = None,
    seeds: PositiveInt | None = None,
    out: Path = Path('runs/studies'),
) -> tuple[list[DensityRuns], range]:
    """Return the trainings of a study of density for each task, and its seeds.

    Args:
        name: Name of the study.
        scale: Scale of the study: smoke, small or paper.
        tasks: Tasks of the scale. If omitted, all tasks.
        seeds: Number of trainings of each kind.
        out: The folder of all studies.

    Raises:
        ValueError: A task is not part of the scale.
    """
    tasks = chosen('tasks', tasks or TASKS[scale], TASKS[scale], at=f' at the scale {scale}')
    study = Study(name, scale, out)
    return [DensityRuns(study, task) for task in tasks], range(seeds or SEEDS[scale])
