"""Classifiers of Long Range Arena with every kind of attention."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.data.sequences import SequenceData
from experiments.papers import study as studies
from experiments.papers.local_data import package_docs
from experiments.runs.config_file import laid_over
from graphattn.patterns import Fixed, Full, LogSparse, Pattern, SlidingWindow, Star, Strided, get

CONFIGS = Path(__file__).parent / 'configs'
LRA = studies.SHIPPED / 'lra'
TASKS = {'ListOps': 'listops', 'Text': 'text', 'Retrieval': 'retrieval', 'Image': 'image',
         'Pathfinder': 'pathfinder'}
STAND_INS = ('text', 'retrieval', 'image', 'pathfinder')  # data sets without a download
CLUSTERS = {'smoke': 4, 'small': 32, 'paper': 128}
PAPER_RANK = 256  # number of projections, features and landmarks, Table 7 of SBM-Transformer

FULL, WINDOW, SAMPLED, BOTH = 'full', 'window', 'SBM', 'SBM | window'
AS_PAPER = 'SBM, as the paper'  # edges by Algorithm 1, gradients by Eq. 9
ATTENTIONS = (FULL, WINDOW, 'Longformer', 'BigBird', 'Star', 'Strided', 'Fixed', 'LogSparse',
              'Diffuser, 1 hop', 'Diffuser', 'linear', 'linear, released', 'Reformer', 'Performer',
              'Performer, ReLU', 'Linformer', 'Nystromformer', 'Sinkhorn', 'Synthesizer',
              'Synthesizer, random', 'Combiner', SAMPLED, AS_PAPER, 'SBM + I', BOTH)


@dataclass(frozen=True)
class LongRange(studies.Trained):
    """A study of Long Range Arena; below the scale paper, with short sequences and stand-ins.

    Args:
        attentions: Names of the kinds of attention, besides the window.
        protocol: The protocol. If omitted, SBM-Transformer's protocol at the scale paper, and the
            clean protocol below it.
        precision: Precision, such as bf16-mixed on a GPU. If omitted, float32.
        tasks: Tasks out of ListOps, Text, Retrieval, Image and Pathfinder.
    """

    attentions: list[str] | None = None
    protocol: Literal['sbm', 'official', 'clean'] | None = None
    precision: str | None = None
    tasks: list[str] | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.scale != 'paper' and self.protocol not in (None, 'clean'):
            raise ValueError(f"'protocol' must be 'clean' if 'scale' is smaller than 'paper' (got "
                             f"{self.protocol!r})")

    @property
    def rules(self) -> str:
        return self.protocol or ('sbm' if self.scale == 'paper' else 'clean')

    def classifier(self, task: str, attention: str, seed: int) -> Path:
        """Train a classifier and test the weights that are best on the development part."""
        slug = re.sub('[^a-z0-9]+', '_', attention.lower())
        run = f'lra-{self.rules}-{TASKS[task]}-{slug}-{seed}'
        return self.trained(run, *self._options(task, attention, seed))

    def baselines(self, task: str) -> dict[str, float]:
        data = studies.data_of(self.classifier(task, WINDOW, 0))
        found = glances(TASKS[task], data.source.read(data.max_length - data.cls))
        return {name: 100 * accuracy for name, accuracy in found.items()}

    @property
    def about(self) -> str:
        if self.scale == 'paper':
            return f"Long Range Arena, protocol '{self.rules}'"
        return ('short sequences and few steps; stand-ins: documentation of packages\n'
                'for Text and Retrieval, digits for Image, drawn contours for Pathfinder')

    def _options(self, task: str, attention: str, seed: int) -> list[str]:
        encoder = {'init_args': self.encoder(task, attention, seed)}
        over = {'model': {'init_args': {'model': {'init_args': {'encoder': encoder}}}},
                'data': {'init_args': {'seed': seed, 'source': {'init_args': self._source(task)}}}}
        precision = [] if self.precision is None else ['--trainer.precision', self.precision]
        configs = studies.config_options(*self._files(task), json.dumps(over))
        return [*configs, '--seed_everything', str(seed), *precision]

    def _files(self, task: str) -> list[Path]:
        name = TASKS[task]
        own = [LRA / f'{self.rules}.yaml', LRA / self.rules / f'{name}.yaml']
        if self.scale == 'paper':
            return own
        if name in STAND_INS:
            own[1] = own[1].with_stem(f'{name}_standin')
        folder = CONFIGS / self.scale
        return [*own, folder / 'lra.yaml', folder / 'lra' / own[1].name]

    def _source(self, task: str) -> dict[str, Any]:
        """Return where the data of a task are kept, if the study decides it."""
        if task == 'ListOps' or task == 'Pathfinder' and self.scale != 'paper':
            return {'cache': str(self.shared / 'cache')}
        if task in ('Text', 'Retrieval') and self.scale != 'paper':
            return {'documents': {'init_args': {'path': str(package_docs(self))}}}
        return {}

    def encoder(self, task: str, attention: str, seed: int) -> dict[str, Any]:
        config = laid_over(*self._files(task))
        encoder = config['model']['init_args']['model']['init_args']['encoder']['init_args']
        length, heads, channels = (encoder[name] for name in ('max_length', 'heads', 'channels'))
        head_channels = encoder.get('head_channels', channels // heads)
        rank = PAPER_RANK if self.scale == 'paper' else max(2, length // 8)
        if attention in (baselines := baselines_at(length, rank)):
            # the baseline sets its own size of a head
            return {'source': None, 'head_channels': None,
                    'attention_dropout': 0.,  # baselines drop no weights
                    'attention': baseline(baselines[attention], channels=channels, heads=heads,
                                          head_channels=head_channels)}
        if attention in (patterns := patterns_at(length)):
            pattern, hops = patterns[attention]
            return {'source': studies.pattern_source(pattern, seed=seed), 'share_source': True,
                    'hops': hops, 'teleport': studies.TELEPORT if hops > 1 else 0.}
        fixed = {SAMPLED: None, AS_PAPER: None, 'SBM + I': SlidingWindow(0),
                 BOTH: patterns_at(length)[WINDOW][0]}
        return {'source': {'class_path': 'graphattn.sources.BlockModelSource', 'init_args': {
            'heads': heads, 'head_channels': head_channels,
            'clusters': CLUSTERS[self.scale], 'estimator': 'paper',
            'distribution': 'poisson' if attention == AS_PAPER else 'bernoulli',
            'fixed': fixed[attention] and str(fixed[attention])}}}


def patterns_at(length: int) -> dict[str, tuple[Pattern, int]]:
    """Return sparse patterns and their hops by name, for sequences of up to ``length`` tokens."""
    radius, stride = max(2, length // 32), math.isqrt(length)
    count = radius // 2 * 2  # width of the window: half of it before the token, and half after
    diffuser = get('diffuser', window=count, num_global=count, num_random=count)
    return {FULL: (Full(), 1), WINDOW: (SlidingWindow(radius), 1),
            'Longformer': (get('longformer', radius=radius, num_global=1), 1),
            'BigBird': (get('bigbird', block=radius // 2), 1), 'Star': (Star(), 1),
            'Strided': (Strided(stride), 1), 'Fixed': (Fixed(stride), 1),
            'LogSparse': (LogSparse(), 1), 'Diffuser, 1 hop': (diffuser, 1),
            'Diffuser': (diffuser, studies.HOPS)}


def baselines_at(length: int, rank: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the class and the arguments of each baseline with ``rank`` features or landmarks."""
    root = math.isqrt(length)  # tokens of a block
    return {'linear': ('Linear', {}), 'linear, released': ('Linear', {'form': 'released'}),
            'Reformer': ('Reformer', {}), 'Performer': ('Performer', {'features': rank}),
            'Performer, ReLU': ('Performer', {'features': rank, 'kernel': 'relu'}),
            'Linformer': ('Linformer', {'max_length': length, 'rank': rank}),
            'Nystromformer': ('Nystromformer', {'landmarks': rank}),
            'Sinkhorn': ('Sinkhorn', {'max_length': length, 'block': root}),
            'Synthesizer': ('Synthesizer', {'max_length': length}),
            'Synthesizer, random': ('Synthesizer', {'max_length': length, 'form': 'random'}),
            'Combiner': ('Combiner', {'block': root})}


def baseline(named: tuple[str, dict[str, Any]], **sizes: int) -> dict[str, Any]:
    name, arguments = named
    return {'class_path': f'experiments.baselines.{name}', 'init_args': {**sizes, **arguments}}


def glances(task: str, data: SequenceData) -> dict[str, float]:
    """Return the accuracies, from 0 to 1, of guesses that read nothing of a sequence, or the root
    of a tree."""
    learn, test = data.parts['train'], data.parts['test']
    most = np.bincount(learn.label).argmax()
    found = {'most frequent class': float((test.label == most).mean())}
    if task == 'listops':
        counts = np.zeros((data.num_tokens, data.num_classes), np.int64)
        np.add.at(counts, (learn.tokens[learn.ptr[:-1]], learn.label), 1)
        guess = counts.argmax(axis=1)[test.tokens[test.ptr[:-1]]]
        found['root'] = float((test.label == guess).mean())
    return found
