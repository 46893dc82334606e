"""Trainings of classifiers, optionally pre-trained on their inputs, for the studies of Long Range
Arena."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import PositiveInt

from experiments.data.listops_baselines import glance_accuracies, majority_accuracy
from experiments.data.sequences import SequenceData
from experiments.papers.diffuser.document_runs import HOPS, TELEPORT, package_docs
from experiments.papers.runs import SHIPPED, chosen, config_options, over_seeds, pattern_source
from experiments.papers.study import ScaleName, Study, data_of
from experiments.runs.checkpoints import BEST
from experiments.runs.config_file import laid_over
from graphattn.patterns import Fixed, Full, LogSparse, Pattern, SlidingWindow, Star, Strided, get

CONFIGS = Path(__file__).parent / 'configs'
LRA = SHIPPED / 'lra'
TASKS = {'ListOps': 'listops', 'Text': 'text', 'Retrieval': 'retrieval', 'Image': 'image',
         'Pathfinder': 'pathfinder'}
STAND_INS = ('text', 'retrieval', 'image')  # data sets without a download
CLUSTERS = {'smoke': 4, 'small': 32, 'paper': 128}
PAPER_RANK = 256  # number of projections, features and landmarks, Table 7 of SBM-Transformer
Protocol = Literal['sbm', 'official', 'clean']

FULL, WINDOW, SAMPLED, BOTH = 'full', 'window', 'SBM', 'SBM | window'
ATTENTIONS = (FULL, WINDOW, 'Longformer', 'BigBird', 'Star', 'Strided', 'Fixed', 'LogSparse',
              'Diffuser, 1 hop', 'Diffuser', 'linear', 'linear, released', 'Reformer', 'Performer',
              'Performer, ReLU', 'Linformer', 'Nystromformer', SAMPLED, 'SBM + I', BOTH)


@dataclass(frozen=True)
class LongRangeRuns:
    """Trainings of models on the tasks of Long Range Arena, see :meth:`Study.trained`.

    Runs with the same arguments are trained once.

    Args:
        study (Study): The study. Its scale determines the configs, and its folder contains the
            runs. Below the scale ``paper``, sequences are shorter, and stand-ins replace data sets
            that must be downloaded.
        protocol (str): A protocol of ``experiments/configs/lra``. It must be ``'clean'`` below the
            scale ``paper``.
        precision (str, optional): Precision of Lightning's trainer, such as ``'bf16-mixed'`` on a
            GPU. If omitted, the configs' float32.

    Raises:
        ValueError: The scale does not have the protocol.
    """

    study: Study
    protocol: Protocol
    precision: str | None = None

    def __post_init__(self):
        if self.study.scale != 'paper' and self.protocol != 'clean':
            raise ValueError(f"'protocol' must be 'clean' if 'scale' is smaller than 'paper' (got "
                             f"{self.protocol!r})")

    def trained(self, task: str, attention: str, seed: int, pretrained: bool = False) -> Path:
        """Train a classifier on a task and test the weights that are best on the development part.
        Return the folder of the run.

        Args:
            task (str): One of :data:`TASKS`.
            attention (str): One of :data:`ATTENTIONS`.
            seed (int): Seed of batches, initialisation and samples.
            pretrained (bool): Whether to start from the encoder of :meth:`pretrained`.
        """
        options, run = self._options(task, attention, seed), self._name(task, attention)
        if pretrained:
            checkpoint = self.pretrained(task, attention, seed) / 'checkpoints' / BEST
            options += ['--model.init_args.pretrained', str(checkpoint)]
            run += '-self_pretrained'
        return self.study.trained(f'{run}-{seed}', *options)

    def pretrained(self, task: str, attention: str, seed: int) -> Path:
        """Pre-train a model on the inputs of a task, for as many steps as the training, and return
        the folder of the run."""
        return self.study.trained(f'{self._name(task, attention)}-next_tokens-{seed}',
                                  *self._options(task, attention, seed), '--config',
                                  str(LRA / 'self_pretraining.yaml'))

    def scored(self, task: str, attention: str, seeds: range,
               pretrained: bool = False) -> dict[str, float | None]:
        """Return means and deviations of the test metrics over the classifiers of these seeds."""
        return over_seeds((self.trained(task, attention, seed, pretrained) for seed in seeds),
                          {'accuracy, %': ('accuracy', 100.)})

    def baselines(self, task: str) -> dict[str, float]:
        """Return the accuracies, in per cent, of baselines that read almost nothing of a
        sequence."""
        data = data_of(self.trained(task, WINDOW, 0))
        found = glances(TASKS[task], data.source.read(data.max_length - data.cls))
        return {name: 100 * accuracy for name, accuracy in found.items()}

    @property
    def about(self) -> str:
        """Return a description of the data, for titles of figures."""
        if self.study.scale == 'paper':
            return f"Long Range Arena, protocol '{self.protocol}'"
        return ('short sequences and few steps; stand-ins: documentation of packages\n'
                'for Text and Retrieval, digits for Image')

    def _name(self, task: str, attention: str) -> str:
        slug = re.sub('[^a-z0-9]+', '_', attention.lower())
        return f'lra-{self.protocol}-{TASKS[task]}-{slug}'

    def _options(self, task: str, attention: str, seed: int) -> list[str]:
        source = self._kept(task)
        encoder = {'init_args': self._encoder(task, attention, seed)}
        over = {'model': {'init_args': {'model': {'init_args': {'encoder': encoder}}}},
                'data': {'init_args': {'seed': seed, 'source': {'init_args': source}}}}
        precision = [] if self.precision is None else ['--trainer.precision', self.precision]
        configs = config_options(*self._configs(task), json.dumps(over))
        return [*configs, '--seed_everything', str(seed), *precision]

    def _configs(self, task: str) -> list[Path]:
        name = TASKS[task]
        own = [LRA / f'{self.protocol}.yaml', LRA / self.protocol / f'{name}.yaml']
        if self.study.scale == 'paper':
            return own
        if name in STAND_INS:
            own[1] = own[1].with_stem(f'{name}_standin')
        folder = CONFIGS / self.study.scale
        return [*own, folder / 'lra.yaml', folder / 'lra' / own[1].name]

    def _kept(self, task: str) -> dict[str, Any]:
        """Return the option that names the folder of a task's data, by its name: a cache, or
        documentation of packages.

        The dict is empty for data sets that need no such option.
        """
        if task in ('ListOps', 'Pathfinder'):
            return {'cache': str(self.study.out / self.study.scale / 'cache')}
        if task in ('Text', 'Retrieval') and self.study.scale != 'paper':
            return {'documents': {'init_args': {'path': str(package_docs(self.study))}}}
        return {}

    def _rank(self, length: int) -> int:
        return PAPER_RANK if self.study.scale == 'paper' else max(2, length // 8)

    def _encoder(self, task: str, attention: str, seed: int) -> dict[str, Any]:
        """Return the arguments with which a config builds the encoder of a kind of attention."""
        config = laid_over(*self._configs(task))
        encoder = config['model']['init_args']['model']['init_args']['encoder']['init_args']
        length, heads, channels = (encoder[name] for name in ('max_length', 'heads', 'channels'))
        head_channels = encoder.get('head_channels', channels // heads)
        if attention in (baselines := baselines_at(length, self._rank(length))):
            # the baseline sets its own size of a head
            return {'source': None, 'head_channels': None,
                    'attention_dropout': 0.,  # baselines drop no weights
                    'attention': baseline(baselines[attention], channels=channels, heads=heads,
                                          head_channels=head_channels)}
        if attention in (patterns := patterns_at(length)):
            pattern, hops = patterns[attention]
            return {'source': pattern_source(pattern, seed=seed),
                    'share_source': True, 'hops': hops, 'teleport': TELEPORT if hops > 1 else 0.}
        fixed = {SAMPLED: None, 'SBM + I': SlidingWindow(0), BOTH: patterns_at(length)[WINDOW][0]}
        return {'source': {'class_path': 'graphattn.sources.BlockModelSource', 'init_args': {
            'heads': heads, 'head_channels': head_channels,
            'clusters': CLUSTERS[self.study.scale], 'estimator': 'paper',
            'fixed': fixed[attention] and str(fixed[attention])}}}


def patterns_at(length: int, radius: int | None = None) -> dict[str, tuple[Pattern, int]]:
    """Return patterns and their numbers of hops by name, for sequences of up to ``length`` tokens.

    Args:
        length (int): Maximum number of tokens of a sequence. It determines the strides, at which
            Strided and Fixed are sparsest.
        radius (int, optional): Radius of windows. If omitted, a window has a sixteenth of the
            tokens.
    """
    radius, stride = radius or max(2, length // 32), math.isqrt(length)
    count = radius // 2 * 2  # width of the window: half of it before the token, and half after
    diffuser = get('diffuser', window=count, num_global=count, num_random=count)
    return {FULL: (Full(), 1), WINDOW: (SlidingWindow(radius), 1),
            'Longformer': (get('longformer', radius=radius, num_global=1), 1),
            'BigBird': (get('bigbird', block=radius // 2), 1), 'Star': (Star(), 1),
            'Strided': (Strided(stride), 1), 'Fixed': (Fixed(stride), 1),
            'LogSparse': (LogSparse(), 1), 'Diffuser, 1 hop': (diffuser, 1),
            'Diffuser': (diffuser, HOPS)}


def baselines_at(length: int, rank: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the name of a class of :mod:`experiments.baselines` and its arguments for each
    baseline, by its name in the table.

    Args:
        length (int): Maximum number of tokens of a sequence.
        rank (int): Number of projections, features and landmarks.
    """
    return {'linear': ('Linear', {}), 'linear, released': ('Linear', {'form': 'released'}),
            'Reformer': ('Reformer', {}), 'Performer': ('Performer', {'features': rank}),
            'Performer, ReLU': ('Performer', {'features': rank, 'kernel': 'relu'}),
            'Linformer': ('Linformer', {'max_length': length, 'rank': rank}),
            'Nystromformer': ('Nystromformer', {'landmarks': rank})}



def glances(task: str, data: SequenceData) -> dict[str, float]:
    """Return the accuracies, from 0 to 1, of baselines that read almost nothing of a sequence, by
    name.

    Args:
        task: The task.
        data: The sequences of the task.
    """
    learn, test = data.parts['train'], data.parts['test']
    return glance_accuracies(learn, test) if task == 'listops' else {
        'most frequent class': majority_accuracy(learn, test)}


def baseline(named: tuple[str, dict[str, Any]], **sizes: int) -> dict[str, Any]:
    """Return the config of a baseline.

    Args:
        named: The name of the class and its arguments, from :func:`baselines_at`.
        **sizes: Further arguments of the class.
    """
    name, arguments = named
    return {'class_path': f'experiments.baselines.{name}', 'init_args': {**sizes, **arguments}}


def long_range_study(
    name: str,
    scale: ScaleName,
    num_seeds: int,
    default_tasks: Sequence[str],
    *,
    protocol: Protocol | None = None,
    precision: str | None = None,
    tasks: list[str] | None = None,
    seeds: PositiveInt | None = None,
    out: Path = Path('runs/studies'),
) -> tuple[LongRangeRuns, tuple[str, ...], range]:
    """Return the trainings of a study of Long Range Arena, its tasks and its seeds.

    Args:
        name: Name of the study.
        scale: Scale of the study: smoke, small or paper.
        num_seeds: Default number of seeds.
        default_tasks: Default tasks.
        protocol: The protocol. If omitted, SBM-Transformer's protocol at the scale paper, and the
            clean protocol below it.
        precision: Precision, such as bf16-mixed on a GPU. If omitted, float32.
        tasks: Tasks out of ListOps, Text, Retrieval, Image and Pathfinder.
        seeds: Number of trainings of each kind.
        out: The folder of all studies.
    """
    protocol = protocol or ('sbm' if scale == 'paper' else 'clean')
    runs = LongRangeRuns(Study(name, scale, out), protocol, precision)
    return runs, chosen('tasks', tasks or default_tasks, TASKS, '; '), range(seeds or num_seeds)
