"""A study: its scale, the models that it trains, and the runner that makes its table and figure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import lightning as L
from filelock import FileLock
from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure

from experiments import train
from experiments.modules import Training
from experiments.runs.config_file import built
from experiments.runs.figures import report_figure
from experiments.runs.load_run import load_run
from experiments.runs.once import train_once
from experiments.runs.summary import read_metrics, read_summary, spread
from experiments.runs.tables import report
from graphattn.patterns import Pattern
from graphattn.utils.files import check_folder
from graphattn.utils.reading import read_yaml

ScaleName = Literal['smoke', 'small', 'paper']
HERE = Path(__file__).parent
SHIPPED = HERE.parent / 'configs'
ENCODER = '--model.init_args.model.init_args.encoder.init_args'
SOURCE = f'{ENCODER}.source'
HOPS, TELEPORT = 5, 0.1  # of Diffuser, Sec. "Ablation Studies"
DENSITY = 'density, %'
ACCURACY = {'accuracy, %': ('accuracy', 100.)}


class Table(NamedTuple):
    """The findings of a study: rows of its table, a figure, what the data are, more figures."""

    rows: list[dict]
    figure: Figure
    about: str = ''
    others: dict[str, Figure] = {}


@dataclass(frozen=True)
class Study:
    """A study at a scale. The folder ``out/scale`` holds the runs, which all studies share.

    Args:
        scale: Scale of the study: smoke, small or paper.
        out: The folder of all studies.
    """

    name: str
    scale: ScaleName = 'small'
    out: Path = Path('runs/studies')

    def __post_init__(self):
        check_folder('out', self.folder)

    @property
    def shared(self) -> Path:
        return self.out / self.scale

    @property
    def folder(self) -> Path:
        return self.shared / self.name

    @property
    def cache(self) -> tuple[str, str]:
        return '--data.init_args.cache', str(self.shared / 'cache')

    def configs(self, paper: str, name: str) -> tuple[Path, ...]:
        """Return a config of a paper's studies; at the scale smoke, it may change the small one."""
        scales = ('small', 'smoke') if self.scale == 'smoke' else (self.scale,)
        return tuple(path for scale in scales
                     if (path := HERE / paper / 'configs' / scale / f'{name}.yaml').exists())

    def trained(self, run: str, *options: str) -> Path:
        """Train a model with options of ``experiments.train`` once, and return its folder."""
        folder = self.shared / 'runs' / run
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{folder}.lock'):  # another study may be training it
            train_once(train.main, folder, options, f'\n{self.name}: {run}')
        return folder

    def made(self, name: str, build: Callable[[Path], object]) -> Path:
        """Return a folder of data, after ``build`` has made it, complete or not at all."""
        folder = self.shared / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{folder}.lock'):
            if not folder.exists():
                build(folder)
        return folder

    def report(self, table: Table) -> None:
        if table.about:
            print(f'\n{table.about}')
        report(table.rows, 'table', self.folder)
        for name, drawn in {'figure': table.figure, **table.others}.items():
            report_figure(drawn, name, self.folder)


@dataclass(frozen=True)
class Trained(Study):
    """A study of models that are trained with several seeds.

    Args:
        seeds: Number of trainings of each kind.
        grid: Options of a training, each with the values to search, such as
            ``{--model.init_args.lr: [1e-4, 1e-3]}``. Each training is repeated with all
            combinations, and the one with the best result on development data counts.
    """

    seeds: PositiveInt | None = None
    grid: dict[str, list[str | float]] | None = None

    def __post_init__(self):
        super().__post_init__()
        for option, values in (self.grid or {}).items():
            if not option.startswith('--') or not values:
                raise ValueError(f"'grid' must map options, such as --model.init_args.lr, to lists "
                                 f"of values (got {option!r}: {values})")

    def trained(self, run: str, *options: str) -> Path:
        settings = [dict(zip(self.grid, values)) for values in product(*self.grid.values())
                    ] if self.grid else [{}]
        runs = {}
        for setting in settings:
            name = '-'.join([run, *(f'{option.strip("-").rpartition(".")[2]}={value}'
                                    for option, value in setting.items())])
            runs[super().trained(name, *options, *(
                str(part) for pair in setting.items() for part in pair))] = name
        best = max(runs, key=development_score) if len(runs) > 1 else next(iter(runs))
        if self.grid:
            print(f'chosen on development data: {runs[best]}', flush=True)
        return best

    def each(self, smoke: int, small: int, paper: int) -> range:
        return range(self.seeds or {'smoke': smoke, 'small': small, 'paper': paper}[self.scale])


class Attention(NamedTuple):
    """A kind of attention: the name of its runs, a pattern or options of a source, and hops."""

    name: str
    edges: Pattern | tuple[str, ...]
    hops: int = 1
    teleport: float = 0.
    more: tuple[str, ...] = ()  # options of the training

    def diffused(self, hops: int = HOPS, teleport: float = TELEPORT) -> Attention:
        return self._replace(hops=hops, teleport=teleport)

    def options(self, seed: int) -> list[str]:
        edges = self.edges
        if isinstance(edges, Pattern):  # built with the seed of the run, for all layers
            edges = source_option(edges, seed=seed), f'{ENCODER}.share_source', 'true'
        return [*edges, f'{ENCODER}.hops', str(self.hops),
                f'{ENCODER}.teleport', str(self.teleport), *self.more]


@dataclass(frozen=True)
class Runs:
    """Trainings that share a prefix of their names, configs, and further options."""

    study: Study
    name: str
    configs: tuple[Path | str, ...]
    options: tuple[str, ...] = ()

    def fit(self, name: str, seed: int, *options: str) -> Path:
        return self.study.trained(
            f'{self.name}-{name}-{seed}', *config_options(*self.configs), *self.options,
            '--seed_everything', str(seed), '--data.init_args.seed', str(seed), *options)

    def trained(self, attention: Attention, seed: int, *options: str) -> Path:
        name = f'{attention.name}-{attention.hops}-{attention.teleport:g}'
        return self.fit(name, seed, *attention.options(seed), *options)

    def scored(self, attention: Attention, seeds: range,
               metrics: dict[str, tuple[str, float]] = ACCURACY) -> dict[str, float | None]:
        return over_seeds((self.trained(attention, seed) for seed in seeds), metrics)


def config_options(*configs: Path | str) -> list[str]:
    """Return the options that name configs, as files or JSON; later ones override earlier ones."""
    return [part for config in configs for part in ('--config', str(config))]


def pattern_source(pattern: Pattern | str | Path | Sequence[Pattern], **arguments) -> dict:
    """Return the config of a PatternSource, with one pattern for all heads or one for each."""
    said = list(map(str, pattern)) if isinstance(pattern, list | tuple) else str(pattern)
    return {'class_path': 'graphattn.sources.PatternSource',
            'init_args': {'pattern': said, **arguments}}


def source_option(pattern: Pattern | str, **arguments) -> str:
    return f'{SOURCE}={json.dumps(pattern_source(pattern, **arguments))}'


def development_score(run: Path) -> float:
    """Return the last accuracy on development data, or the negative loss without accuracies."""
    for prefix, sign in (('val/accuracy', 1.), ('val/loss', -1.)):
        for row in reversed(read_metrics(run)):
            if found := [value for name, value in row.items() if name.startswith(prefix)]:
                return sign * found[0]
    raise ValueError(f"'grid' must be for trainings that are evaluated on development data (got "
                     f"{run}, without an evaluation)")


def over_seeds(runs: Iterable[Path],
               metrics: dict[str, tuple[str, float]] = ACCURACY) -> dict[str, float | None]:
    """Return columns with the mean and deviation of metrics, times factors, and the density."""
    reports = [read_summary(run) for run in runs]
    scores: dict[str, float | None] = {}
    for column, (metric, factor) in metrics.items():
        scores |= mean_and_spread(column, [factor * report[metric] for report in reports])
    # Baselines have no edges.
    density = [100 * value for report in reports for value in report['density'].values()]
    return {**scores, DENSITY: mean(density)}


def mean(values: Iterable[float]) -> float | None:
    values = [*values]
    return statistics.mean(values) if values else None


def mean_and_spread(column: str, values: Sequence[float],
                    name: str | None = None) -> dict[str, float | None]:
    """Return two columns: a mean, and a deviation, whose column may have another name."""
    return {column: mean(values), spread_of(name or column): spread(values)}


def spread_of(column: str) -> str:
    """Return the column of a deviation, ``accuracy, spread`` for ``accuracy, %``."""
    return f'{column.partition(",")[0]}, spread'


def split(rows: list[dict], column: str) -> dict[str, list[dict]]:
    return {value: [row for row in rows if row.get(column) == value]
            for value in dict.fromkeys(row.get(column) for row in rows)}


def chosen(what: str, asked: Sequence[str], known: Iterable[str],
           between: str = ', ', at: str = '') -> tuple[str, ...]:
    """Return the names that the option ``what`` asks for, if all are known."""
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(f"'{what}' must contain only names from {between.join(known)}{at} (got "
                         f"{between.join(unknown)})")
    return tuple(asked)


def restored(run: Path) -> tuple[Training, L.LightningDataModule, L.Trainer]:
    """Load a finished run: its module, its data, and a trainer with the settings of its test."""
    trained = load_run(run)
    trainer = L.Trainer(
        default_root_dir=run, limit_test_batches=trained.config['trainer']['limit_test_batches'],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False)
    return trained.module, trained.data, trainer


def tested(run: tuple[Training, L.LightningDataModule, L.Trainer], metric: str) -> float:
    module, data, trainer = run
    metrics, = trainer.test(module, data, verbose=False)
    return metrics[f'test/{metric}']


def data_of(run: Path) -> L.LightningDataModule:
    return built(read_yaml(run / 'config.yaml'), data=L.LightningDataModule).data
