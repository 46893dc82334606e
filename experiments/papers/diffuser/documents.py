"""Trainings of document classifiers, which the studies of diffusion share."""

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path

from experiments.papers.figures import bars
from experiments.papers.local_data import package_docs
from experiments.papers.study import (
    ENCODER,
    SOURCE,
    Attention,
    Runs,
    Table,
    Trained,
    over_seeds,
)
from experiments.runs.config_file import laid_over
from graphattn import patterns
from graphattn.models import encoder_of

METRICS = {'accuracy, %': ('accuracy', 100.), 'macro F1, %': ('macro_f1', 100.)}
# Numbers of local, global and random keys per query (Table S.10). At the small scale, documents and
# numbers are a quarter of the paper's, so densities are equal.
COUNT = {'smoke': 8, 'small': 16, 'paper': 64}
CLUSTERS = {'smoke': 4, 'small': 32, 'paper': 128}


@dataclass(frozen=True)
class Documents(Trained):
    """A study of classifiers of long documents.

    Args:
        documents: A config of experiments.train with documents. If omitted, the documents are the
            documentation of installed packages, or Amazon reviews at the scale paper.
        weights: Folders of a Hugging Face BERT or RoBERTa, with its tokenizer, by the name of the
            row that they begin: full attention on as many tokens as the model takes.
    """

    documents: Path | None = None
    weights: dict[str, Path] | None = None

    @property
    def count(self) -> int:
        """The number of keys of a query for each kind of Diffuser's edges."""
        return COUNT[self.scale]

    def diffuser(self, window: int | None = None, num_global: int | None = None,
                 num_random: int | None = None, *, uniform: bool = False,
                 cls_global: bool = True) -> Attention:
        """Return attention along Diffuser's edges, without the kinds whose number is 0."""
        window, num_global, num_random = counts = [
            self.count if count is None else count for count in (window, num_global, num_random)]
        parts: list[patterns.Pattern] = []
        if window:
            parts.append(patterns.OverlappingBlocks(window))
        if num_global:
            tokens = patterns.GlobalTokens(num_global - cls_global, random=True, first=1)
            parts.append(patterns.GlobalTokens(1) | tokens if cls_global else tokens)
        if num_random:
            parts.append(patterns.RandomKeys(num_random, 'uniform' if uniform else 'random'))
        kind = ['uniform'] * uniform + ['local-cls'] * (not cls_global)
        return Attention('-'.join(['diffuser', *map(str, counts), *kind]),
                         reduce(operator.or_, parts))

    @property
    def kinds(self) -> dict[str, Attention]:
        bigbird = Attention('bigbird', patterns.get('bigbird', block=self.count))
        # windows eight times as wide as Diffuser's
        longformer = Attention('longformer', patterns.get(
            'longformer', radius=4 * self.count, num_global=1))
        return {'full': Attention('full', patterns.Full()),
                'BigBird': bigbird, 'BigBird, diffused': bigbird.diffused(),
                'Longformer': longformer, 'Longformer, diffused': longformer.diffused(),
                'Diffuser, one hop': self.diffuser(), 'Diffuser': self.diffuser().diffused()}

    def block_model(self, density_weight: float, max_length: int) -> Attention:
        """Return attention along a window and sampled edges; documents are cut, because graphs
        begin with a quarter of all pairs."""
        try:
            model = laid_over(*self._configs)['model']['init_args']['model']
            encoder = model['init_args']['encoder']['init_args']
            heads, channels = encoder['heads'], encoder['channels']
        except (KeyError, TypeError) as error:
            raise ValueError(f"'documents' must be a config of a classifier with 'heads' and "
                             f"'channels' (got {self._configs[-1]}, without {error})") from error
        source = {'class_path': 'graphattn.sources.BlockModelSource',
                  'init_args': {'heads': heads, 'head_channels': channels // heads,
                                'clusters': CLUSTERS[self.scale], 'estimator': 'paper',
                                'fixed': str(patterns.SlidingWindow(self.count // 2))}}
        return Attention(f'sbm-{density_weight:g}-{max_length}', (
            f'{SOURCE}={json.dumps(source)}', f'{ENCODER}.share_source', 'false',
            '--model.init_args.density_weight', str(density_weight),
            '--data.init_args.max_length', str(max_length)))

    def scored(self, attention: Attention, seeds: range) -> dict[str, float | None]:
        return self.runs.scored(attention, seeds, METRICS)

    def compared(self, column: str, kinds: dict[str, Attention], seeds: range, title: str,
                 paper: tuple[str, dict[str, float]]) -> Table:
        """Return a row for each kind of attention, beside a column of the paper, as bars."""
        begun = {name: _begun_with(folder, self._configs)  # wrong folders fail early
                 for name, folder in (self.weights or {}).items()}
        found = {name: (attention.hops, self.scored(attention, seeds))
                 for name, attention in kinds.items()}
        found |= {name: (1, over_seeds((self.runs.fit(name, seed, *options) for seed in seeds),
                                       METRICS)) for name, options in begun.items()}
        printed, about = paper[1], self.about
        if absent := [name for name in printed if name not in found]:
            about += f'; no --weights of {", ".join(absent)}'
        rows = [{column: name, 'hops': hops, **scores, paper[0]: printed.get(name)}
                for name, (hops, scores) in found.items()]
        return Table(rows, bars(rows, column, METRICS, f'{title}\n{about}'), about)

    @property
    def about(self) -> str:
        few = 'a little of ' if self.scale == 'smoke' else ''
        return (f'{few}the documentation of this Python, labelled by package'
                if self._is_local else f'documents of {self._configs[-1]}')

    @cached_property
    def runs(self) -> Runs:
        path = '--data.init_args.documents.init_args.path'
        data = (path, str(package_docs(self)), *self.cache) if self._is_local else ()
        return Runs(self, 'documents', self._configs, data)

    @property
    def _is_local(self) -> bool:
        return self.documents is None and self.scale != 'paper'

    @property
    def _configs(self) -> tuple[Path, ...]:
        return (self.documents,) if self.documents else self.configs('diffuser', 'documents')


def _begun_with(folder: Path, configs: Sequence[Path]) -> list[str]:
    """Return the options of a training with full attention that begins with given weights."""
    try:
        longest = encoder_of(folder, patterns.Full()).position_embedding.num_embeddings
    except (OSError, ValueError) as error:
        raise ValueError(f"'weights' must be folders with the model.safetensors, config.json and "
                         f"tokenizer of a BERT or RoBERTa (got {folder}; {error})") from error
    arguments = {'weights': str(folder), 'num_classes':
                 laid_over(*configs)['model']['init_args']['model']['init_args']['num_classes']}
    model = {'class_path': 'experiments.runs.pretrained.begun_classifier', 'init_args': arguments}
    return ['--model.init_args.model', json.dumps(model),
            '--data.init_args.tokenizer', str(folder),
            '--data.init_args.max_length', str(longest)]
