"""Trainings of document classifiers, which the studies of diffusion share."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.data.text.corpus import distinct, installed_documents
from experiments.data.text.package_docs import build_package_docs
from experiments.papers.few_documents import few_documents
from experiments.papers.figures import bars
from experiments.papers.runs import (
    ENCODER,
    SOURCE,
    Runs,
    at_scale,
    over_seeds,
    pattern_source,
)
from experiments.papers.study import ScaleName, Study
from experiments.runs.config_file import laid_over
from graphattn.patterns import (
    Full,
    GlobalTokens,
    OverlappingBlocks,
    Pattern,
    RandomKeys,
    SlidingWindow,
    get,
)

DOCUMENTS = '--data.init_args.documents.init_args'
CONFIGS = Path(__file__).parent / 'configs'
METRICS = {'accuracy, %': ('accuracy', 100.), 'macro F1, %': ('macro_f1', 100.)}
# Numbers of local, global and random keys per query (Table S.10). At the small scale, documents and
# numbers are a quarter of the paper's, so densities are equal.
COUNT = {'smoke': 8, 'small': 16, 'paper': 64}
CLUSTERS = {'smoke': 4, 'small': 32, 'paper': 128}
HOPS, TELEPORT = 5, 0.1  # Sec. "Ablation Studies"


@dataclass(frozen=True)
class Attention:
    """A kind of attention in the study: the source of its edges, and the number of hops.

    Args:
        name (str): Name of the run's folder. Two kinds of attention with equal names must have
            equal edges.
        edges (Pattern or tuple): A pattern, or command-line options for the source. The pattern is
            built with the seed of the run, and all layers share it.
        hops (int): Number of hops.
        teleport (float): Fraction of its original value that a token keeps in each hop.
    """

    name: str
    edges: Pattern | tuple[str, ...]
    hops: int = 1
    teleport: float = 0.

    def diffused(self, hops: int = HOPS, teleport: float = TELEPORT) -> Attention:
        """Return the same kind of attention along the same edges, with ``hops`` hops and
        ``teleport``."""
        return replace(self, hops=hops, teleport=teleport)

    def options(self, seed: int) -> list[str]:
        edges = self.edges
        if isinstance(edges, Pattern):
            source = pattern_source(edges, seed=seed)
            edges = (f'{SOURCE}={json.dumps(source)}', f'{ENCODER}.share_source', 'true')
        return [*edges, f'{ENCODER}.hops', str(self.hops),
                f'{ENCODER}.teleport', str(self.teleport)]


@dataclass(frozen=True)
class DocumentRuns:
    """Trainings of classifiers of long documents, see :meth:`Study.trained`.

    Runs with the same arguments are trained once.

    Args:
        study (Study): The study. Its scale determines the config, and its folder contains the runs.
        documents (Path, optional): Another config of :mod:`experiments.train`, such as for your own
            documents.
    """

    study: Study
    documents: Path | None = None

    @property
    def count(self) -> int:
        """Return the scale's number of keys of a query for each kind of Diffuser's edges: local,
        global and random."""
        return COUNT[self.study.scale]

    def diffuser(self, window: int | None = None, num_global: int | None = None,
                 num_random: int | None = None, *, uniform: bool = False,
                 cls_global: bool = True) -> Attention:
        """Return attention along Diffuser's edges, with one hop.

        Args:
            window (int, optional): Width of the blocks.
            num_global (int, optional): Number of global tokens.
            num_random (int, optional): Number of random keys per query.
            uniform (bool): Whether to replace random keys by evenly spaced keys.
            cls_global (bool): Whether [CLS] is one of the global tokens.
        """
        counts = [self.count if count is None else count
                  for count in (window, num_global, num_random)]
        kind = ['uniform'] * uniform + ['local-cls'] * (not cls_global)
        return Attention('-'.join(['diffuser', *map(str, counts), *kind]),
                         _edges(*counts, uniform, cls_global))

    def block_model(self, density_weight: float, max_length: int) -> Attention:
        """Return attention along a local window and edges that each head samples, with one hop.

        Args:
            density_weight (float): Weight of the penalty on density.
            max_length (int): Maximum number of tokens of a document. It limits the memory, because
                sampled graphs begin with a quarter of all pairs.
        """
        try:
            model = laid_over(*self._configs)['model']['init_args']['model']
            encoder = model['init_args']['encoder']['init_args']
            heads, channels = encoder['heads'], encoder['channels']
        except (KeyError, TypeError) as error:
            raise ValueError(f"'documents' must be a config of a classifier with 'heads' and "
                             f"'channels' (got {self._configs[-1]}, without {error})") from error
        source = {'class_path': 'graphattn.sources.BlockModelSource',
                  'init_args': {'heads': heads, 'head_channels': channels // heads,
                                'clusters': CLUSTERS[self.study.scale], 'estimator': 'paper',
                                'fixed': str(SlidingWindow(self.count // 2))}}
        return Attention(f'sbm-{density_weight:g}-{max_length}', (
            f'{SOURCE}={json.dumps(source)}', f'{ENCODER}.share_source', 'false',
            '--model.init_args.density_weight', str(density_weight),
            '--data.init_args.max_length', str(max_length)))

    @property
    def bigbird(self) -> Attention:
        """Return attention along BigBird's edges, with one hop."""
        return Attention('bigbird', get('bigbird', block=self.count))

    @property
    def longformer(self) -> Attention:
        """Return attention along Longformer's edges, with one hop.

        Windows are eight times as wide as Diffuser's.
        """
        return Attention('longformer', get('longformer', radius=4 * self.count, num_global=1))

    @property
    def full(self) -> Attention:
        """Return full attention, with one hop."""
        return Attention('full', Full())

    def trained(self, attention: Attention, seed: int) -> Path:
        """Train a classifier with this attention in all layers, and return the folder of its
        run."""
        return self._runs.fit(f'{attention.name}-{attention.hops}-{attention.teleport:g}', seed,
                              *attention.options(seed))

    def scored(self, attention: Attention, seeds: range) -> dict[str, float | None]:
        """Return means and deviations of the test metrics over the classifiers of some seeds, as
        columns of a table. Missing classifiers are trained."""
        return over_seeds((self.trained(attention, seed) for seed in seeds), METRICS)

    def compared(self, column: str, kinds: dict[str, Attention], seeds: range, title: str,
                 paper: tuple[str, dict[str, float]]) -> None:
        """Train classifiers with several kinds of attention, and write a table and a figure with a
        row for each kind.

        Args:
            column (str): Name of the column with the names of the kinds.
            kinds (dict): The kinds of attention by name.
            seeds (range): Seeds of the trainings.
            title (str): The claim of the paper.
            paper (tuple): Name of the column with the paper's values, and these values by name.
        """
        rows = [{column: name, 'hops': attention.hops, **self.scored(attention, seeds),
                 paper[0]: paper[1].get(name)}
                for name, attention in kinds.items()]
        self.study.report(rows, bars(rows, column, METRICS, f'{title}\n{self.about}'), self.about)

    @property
    def about(self) -> str:
        """Return a description of the documents, for titles of figures."""
        few = 'a little of ' if self.study.scale == 'smoke' else ''
        return (f'{few}the documentation of this Python, labelled by package'
                if self._has_package_docs else f'documents of {self._configs[-1]}')

    @property
    def _has_package_docs(self) -> bool:
        return self.documents is None and self.study.scale != 'paper'

    @property
    def _configs(self) -> tuple[Path, ...]:
        return (self.documents,) if self.documents else at_scale(
            CONFIGS, self.study.scale, 'documents.yaml')

    @cached_property
    def _runs(self) -> Runs:
        """Return the Runs that train the classifiers of this study.

        The path of the documents is passed as an option, unless their config has it.
        """
        data = (f'{DOCUMENTS}.path', str(package_docs(self.study)), *self.study.cache
                ) if self._has_package_docs else ()
        return Runs(self.study, 'documents', self._configs, data)


def package_docs(study: Study) -> Path:
    """Return the folder of package documentation, which all studies of a scale share."""
    return study.made('package_docs', lambda folder: build_package_docs(
        folder, few_documents() if study.scale == 'smoke' else distinct(installed_documents())))


def document_study(
    name: str,
    scale: ScaleName,
    num_seeds: int,
    *,
    documents: Path | None = None,
    seeds: PositiveInt | None = None,
    out: Path = Path('runs/studies'),
) -> tuple[DocumentRuns, range]:
    """Return the trainings of a study of long documents, and its seeds.

    Args:
        name: Name of the study.
        scale: Scale of the study: smoke, small or paper.
        num_seeds: Default number of seeds.
        documents: A config of experiments.train with documents. If omitted, the documents are the
            documentation of installed packages, or Amazon reviews at the scale paper.
        seeds: Number of trainings of each kind of attention.
        out: The folder of all studies.
    """
    return DocumentRuns(Study(name, scale, out), documents), range(seeds or num_seeds)


def _edges(window: int, num_global: int, num_random: int, uniform: bool,
           cls_global: bool) -> Pattern:
    """Return Diffuser's pattern without the kinds of edges whose number is 0. Arguments are those
    of :meth:`DocumentRuns.diffuser`."""
    parts: list[Pattern] = []
    if window:
        parts.append(OverlappingBlocks(window))
    if num_global and cls_global:
        parts.append(GlobalTokens(1) | GlobalTokens(num_global - 1, random=True, first=1))
    elif num_global:
        parts.append(GlobalTokens(num_global, random=True, first=1))
    if num_random:
        parts.append(RandomKeys(num_random, 'uniform' if uniform else 'random'))
    return reduce(operator.or_, parts)
