"""Block models and fixed edges on tasks of Long Range Arena, for the studies of density."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from experiments.data.sequences import SequenceData, Sequences
from experiments.papers.sbm_transformer.long_range import LRA
from experiments.papers.study import SOURCE, Runs, Trained, chosen, restored, source_option
from experiments.runs.config_file import built, laid_over
from experiments.runs.summary import read_summary
from experiments.tasks import LongRange
from experiments.tasks.long_range import collate
from graphattn.patterns import Pattern, SlidingWindow

STAND_IN = 'digits'
TASKS = {'smoke': (STAND_IN,), 'small': (STAND_IN,),
         'paper': ('listops', 'text', 'retrieval', 'image', 'pathfinder')}
# The paper trains for 5,000 to 62,400 steps. In the 400 steps of the small scale, lambda = 1e-2
# removes a few of the edges, lambda = 1e-1 leaves 7 % of the pairs, and lambda = 1 leaves less than
# 1 %.
WEIGHTS = {'smoke': ('0', '1'), 'small': ('0', '1e-2', '1e-1', '1'),
           'paper': ('0', '1e-4', '1e-3', '1e-2', '1e-1')}
SELF_LOOPS = SlidingWindow(0)
KINDS = {'': {}, '+I': {'fixed': str(SELF_LOOPS)}, '-as_paper': {'distribution': 'poisson'}}


@dataclass(frozen=True)
class DensityStudy(Trained):
    """A study of penalties on density.

    Args:
        tasks: Tasks of the scale. If omitted, all tasks.
    """

    tasks: list[str] | None = None

    @property
    def weights(self) -> tuple[str, ...]:
        return WEIGHTS[self.scale]

    def asked(self) -> 'list[Densities]':
        known = TASKS[self.scale]
        return [Densities(self, task, self.each(1, 3, 3)) for task in chosen(
            'tasks', self.tasks or known, known, at=f' at the scale {self.scale}')]


@dataclass(frozen=True)
class Densities:
    """Trainings on one task with the seeds of a study."""

    study: DensityStudy
    task: str
    seeds: range

    def along(self, name: str, pattern: Pattern) -> list[Path]:
        return [self._runs.fit(name, seed, source_option(pattern)) for seed in self.seeds]

    def sampled(self, weight: str, kind: str = '') -> list[Path]:
        """Train block models of one of ``KINDS`` with a weight of the penalty on density."""
        own = [part for name, value in KINDS[kind].items()
               for part in (f'{SOURCE}.init_args.{name}', value)]
        return [self._runs.fit(f'sbm{kind}-{weight}', seed,
                               '--model.init_args.density_weight', weight, *own)
                for seed in self.seeds]

    def most_accurate(self, weight: str) -> Path:
        return max(self.sampled(weight), key=lambda run: read_summary(run)['accuracy'])

    def read(self) -> SequenceData:
        data = built(laid_over(*self._runs.configs), data=LongRange).data
        return data.source.read(data.max_length - data.cls)

    @cached_property
    def _runs(self) -> Runs:
        configs = LRA / 'sbm.yaml', LRA / 'sbm' / f'{self.task}.yaml'
        if self.task == STAND_IN:
            configs = self.study.configs('sbm_transformer', 'long_range')
        return Runs(self.study, self.task, configs)


class OfInputs(NamedTuple):
    """Densities of graphs ``[layers, heads, num_sequences]``, and predicted classes."""

    density: Tensor
    predicted: Tensor


@torch.no_grad()
def of_inputs(model: nn.Module, sequences: Sequences) -> OfInputs:
    model.eval()
    torch.manual_seed(0)
    densities, predicted = [], []
    for examples in tqdm(torch.arange(len(sequences.label)).split(32), desc='inputs',
                         disable=None):
        batch = collate(sequences.take(examples.numpy()))
        logits, graphs = model(batch.tokens, batch.ptr, return_graphs=True)
        densities.append(torch.stack([graph.density(per_segment=True).view(model.encoder.heads, -1)
                                      for graph in graphs]))
        predicted.append(logits.argmax(dim=-1))
    return OfInputs(torch.cat(densities, dim=2), torch.cat(predicted))


def reloaded(run: Path) -> tuple[nn.Module, Sequences]:
    training, data, _ = restored(run)
    data.setup()
    return training.model, data.data.parts['test']
