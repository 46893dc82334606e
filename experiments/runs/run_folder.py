"""The folder of a training run: its config, logs, metrics, summary and figures."""

import csv
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from matplotlib.figure import Figure
from numba.core.event import TimingListener
from torch import nn

from experiments.runs.attention import nearly_full
from experiments.runs.checkpoints import newest_in, say
from experiments.runs.figures import training_curves
from experiments.runs.one_run import CONFIG
from experiments.runs.summary import MEANING, read_summary, write_summary
from experiments.runs.summary import NAME as SUMMARY
from experiments.runs.versions import versions
from graphattn.layers import GraphAttention
from graphattn.sources import BlockModelSource, LearnedMaskSource
from graphattn.utils.files import write_whole

LOST = 'heads_without_edges'
KEPT = 0.1  # of the density of exploration
LEARNED = BlockModelSource, LearnedMaskSource
LoggerName = Literal['csv', 'tensorboard', 'wandb']


class SaveConfig(SaveConfigCallback):
    """Write the resolved options to config.yaml when the training begins, after all checks."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Do nothing yet, because the checkpoint to resume from has not been read at this time."""

    @rank_zero_only
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        folder = Path(trainer.default_root_dir)
        (folder / SUMMARY).unlink(missing_ok=True)
        self._write(folder)
        save_tokenizer(trainer)

    @rank_zero_only
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        folder = Path(trainer.default_root_dir)
        if not (folder / CONFIG).exists():  # there were no steps
            self._write(folder)
        for ending in 'yaml', 'csv', 'json', 'png':  # remove partial files of a killed process
            for path in folder.glob(f'.*-????????.{ending}'):
                path.unlink()

    def _write(self, folder: Path) -> None:
        config = config_text(self.parser, self.config)
        write_whole(folder / CONFIG, lambda path: path.write_text(config, encoding='utf-8'))


def config_text(parser: ArgumentParser, config: Namespace) -> str:
    """Return the text of config.yaml, without the checkpoint to resume from."""
    resolved = config.clone()
    for name in 'ckpt_path', 'trust', 'attention':
        resolved.pop(name, None)
    return parser.dump(resolved, skip_unset=False, skip_validation=True)


def save_tokenizer(trainer: L.Trainer) -> None:
    if hasattr(trainer.datamodule, 'load_tokenizer'):
        tokenizer = trainer.datamodule.load_tokenizer()
        write_whole(Path(trainer.default_root_dir) / 'tokenizer.json',
                    lambda path: tokenizer.save(str(path)))


class RunFolder(Callback):
    """A callback that writes metrics.csv after each epoch, and summary.json and figures at the end.

    Checkpoints contain the metrics of past epochs, so a resumed run has the metrics of all epochs.
    If an epoch was resumed in its middle, its training metrics are those of its remaining batches
    only.
    """

    def __init__(self, identity: dict[str, Any] | None = None):
        self.identity = identity  # of one_run.identity, saved in the checkpoints
        self.go_on = 'the same command resumes'
        self.history: list[dict[str, float]] = []
        # the metrics that were measured since the last row of the history
        self.evaluated: dict[str, float] = {}
        self.seconds = self.compile_seconds = 0.
        self.compiling = TimingListener()  # of numba, while it is installed
        self.is_training = False  # False if this process only evaluates
        self.has_steps = False  # False if the resumed run had already ended
        self.weights = {'epoch': 0, 'step': 0}  # of the tested weights
        self.unsaid: list[str] = []  # until there is a checkpoint, from which no run repeats it

    def state_dict(self) -> dict:
        return {'history': self.history, 'evaluated': self.evaluated, 'seconds': self.seconds,
                'compile_seconds': self.compile_seconds, 'identity': self.identity}

    def load_state_dict(self, state_dict: dict) -> None:
        if len(state_dict['history']) > len(self.history):
            self.history, self.seconds = state_dict['history'], state_dict['seconds']
            self.compile_seconds = state_dict.get('compile_seconds', 0.)
            if self.history[0].get('epoch') == 0:  # of an earlier version, which counted from 0
                self.history = [{**row, 'epoch': row['epoch'] + 1} for row in self.history]
        self.evaluated = state_dict.get('evaluated', {})

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule,
                           checkpoint: dict) -> None:
        self.weights = {'epoch': checkpoint['epoch'] + 1, 'step': checkpoint['global_step']}

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.is_training = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.has_steps = True
        _check_schedules(trainer)
        self._start_epoch()  # which is resumed in its middle

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._say_epoch()
        self._start_epoch()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._say_epoch()

    def _say_epoch(self) -> None:
        while self.unsaid:
            print(self.unsaid.pop(), flush=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.evaluated = _metrics(trainer, 'val')
        lost = heads_without_edges(pl_module, _densities(self.evaluated, 'val'))
        if lost or any(LOST in row for row in self.history):
            self.evaluated[LOST] = float(len(lost))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        compiled = self._compiled() - self._compiled_before
        seconds = time.perf_counter() - self._epoch_start - compiled
        self.compile_seconds += compiled
        self.seconds += seconds
        if LOST in self.evaluated:
            self.log(LOST, self.evaluated[LOST], prog_bar=True)
        row = {'epoch': trainer.current_epoch + 1, 'step': trainer.global_step,
               **_metrics(trainer, 'train'), **self.evaluated}
        if self.history and self.history[-1]['epoch'] == row['epoch']:
            self.history.pop()  # remove the row of a partial epoch, which a limit cut
        self.history.append(row)
        self.evaluated = {}
        self.weights = {'epoch': row['epoch'], 'step': row['step']}
        if trainer.is_global_zero:
            write_whole(Path(trainer.default_root_dir) / 'metrics.csv', self._write_metrics)
            if trainer.progress_bar_callback is None and not sys.stdout.isatty():
                self.unsaid.append(epoch_line(row, trainer.max_epochs, seconds))
            line = nearly_full(pl_module.model, _densities(row, 'train'))
            if line is not None and row['epoch'] == 1:
                say(line)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.has_steps and trainer.is_global_zero:
            print(f'nothing is left to train after step {trainer.global_step}')

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        test = _metrics(trainer, 'test')
        density = _densities(test, 'test')
        lost = heads_without_edges(pl_module, density)
        metrics = {name.removeprefix('test/'): value for name, value in test.items()
                   if not name.startswith('test/density/')}
        trained = {'epochs': len(self.history), 'seconds': round(self.seconds, 1),
                   'compile_seconds': round(self.compile_seconds, 1)}
        if not self.is_training and (folder / SUMMARY).exists():
            # A checkpoint contains only the training that preceded it.
            before = read_summary(folder)
            trained = {name: before[name] for name in trained if name in before}
        summary = {
            **metrics, 'density': density, LOST: lost, **trained,
            'tested_after_epoch': self.weights['epoch'], 'tested_after_step': self.weights['step'],
            'parameters': sum(p.numel() for p in pl_module.parameters()),
            'seed': int(os.environ['PL_GLOBAL_SEED']),
            'processes': trainer.world_size, 'threads': torch.get_num_threads(),
            'versions': versions(), 'inputs': (self.identity or {}).get('inputs', {}),
        }
        save_tokenizer(trainer)
        print()
        width = max([21, *map(len, metrics)])
        for name, value in metrics.items():
            # The threshold of question answering is -1e30 if no answer is ever predicted.
            meaning = f'  {MEANING[name]}' if name in MEANING else ''
            print(f'test {name:<{width}} {value:{".4f" if abs(value) < 1e9 else ".0e"}}{meaning}')
        for place, value in density.items():
            print(f'density {place:<18} {value:.1%}')
        if lost:
            print(f'heads without edges of their own: {", ".join(lost)}')
        epochs = f"{summary['epochs']} epoch{'s' * (summary['epochs'] != 1)}"
        compiled = summary.get('compile_seconds', 0.)
        first = f'compiled {compiled:.0f} s, ' if compiled >= 1 else ''
        print(f"{first}trained {epochs} in {summary['seconds']:.0f} s, tested the weights after "
              f"step {summary['tested_after_step']}, of epoch {summary['tested_after_epoch']}")
        for picture in self._draw(trainer, pl_module):
            print(f'picture {picture}')
        write_summary(folder, summary)  # last, because a run with it is finished
        print(f'results are in {folder}')

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule,
                     exception: BaseException) -> None:
        # Lightning prints no message.
        if isinstance(exception, KeyboardInterrupt) and trainer.is_global_zero:
            self.tell(str(exception) or 'interrupted', Path(trainer.default_root_dir))

    def tell(self, what: str, folder: Path) -> None:
        """Print why a run has ended, ``what``, and how it can be resumed from its folder."""
        if not self.is_training:
            rest = ''
        elif path := newest_in(folder / 'checkpoints'):
            rest = f'; {self.go_on} from {path}'
        else:
            rest = ', before the first checkpoint; the same command starts again'
        print(f'{what}{rest}', file=sys.stderr)

    def _start_epoch(self) -> None:
        self._epoch_start, self._compiled_before = time.perf_counter(), self._compiled()

    def _compiled(self) -> float:
        return self.compiling.duration if self.compiling.done else 0.

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule) -> list[Path]:
        figures: dict[str, Figure] = {}
        if self.history and self.is_training:
            figures['curves'] = training_curves(self.history, self.weights['epoch'])
        if hasattr(trainer.datamodule, 'figures'):
            figures.update(trainer.datamodule.figures(pl_module.model))
        paths = []
        for name, figure in figures.items():
            paths.append(Path(trainer.default_root_dir) / f'{name}.png')
            write_whole(paths[-1], figure.savefig)
        return paths

    def _write_metrics(self, path: Path) -> None:
        columns = list(dict.fromkeys(name for row in self.history for name in row))
        with path.open('w', newline='', encoding='utf-8') as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.history)


def epoch_line(row: dict[str, float], max_epochs: int | None, seconds: float) -> str:
    total = f'/{max_epochs}' if max_epochs is not None and max_epochs > 0 else ''
    parts = [f"epoch {row['epoch']}{total}, step {row['step']}, {seconds:.1f} s"]
    for stage, name in (('train', 'training'), ('val', 'development')):
        metrics = [f'{metric.partition("/")[2]} {value:.4g}' for metric, value in row.items()
                   if metric.startswith(f'{stage}/') and '/density/' not in metric]
        density = list(_densities(row, stage).values())
        if density:
            metrics.append(f'density {sum(density) / len(density):.1%}')
        if metrics:
            parts.append(f"{name} {', '.join(metrics)}")
    return '; '.join(parts)


def _check_schedules(trainer: L.Trainer) -> None:
    """Raise an error if a resumed learning-rate schedule is for another number of steps than the
    training."""
    steps = trainer.estimated_stepping_batches
    for config in trainer.lr_scheduler_configs:
        if (total := getattr(config.scheduler, 'total_steps', steps)) != steps:
            raise ValueError(f"'trainer.max_epochs' and 'trainer.max_steps' must give {total} "
                             f"steps, the length of the learning-rate cycle in 'ckpt_path' (got "
                             f"{steps} steps)")


def _metrics(trainer: L.Trainer, stage: str) -> dict[str, float]:
    """Return the metrics of a stage by name; those without a stage are of training."""
    return {name: float(value) for name, value in trainer.callback_metrics.items()
            if name.startswith(f'{stage}/')
            or stage == 'train' and not name.startswith('val/') and name != LOST}


def _densities(metrics: dict[str, float], stage: str) -> dict[str, float]:
    prefix = f'{stage}/density/'
    return {name.removeprefix(prefix): value for name, value in metrics.items()
            if name.startswith(prefix)}


def heads_without_edges(model: nn.Module, density: dict[str, float]) -> list[str]:
    r"""Return the names of the heads that have lost nearly all of their edges, beside those of
    exploration.

    In a block model with exploration :math:`\delta`, their density without exploration is at most
    :math:`0.1 \, \delta`; in a learned mask, they keep no pair. Fixed edges count as kept.
    """
    learned = [module for module in model.modules() if isinstance(module, LEARNED)]
    # The source of each layer. Attached models have other layers, and one kind of sources.
    sources = [next((part for part in layer.source.modules() if isinstance(part, LEARNED)), None)
               for layer in model.modules()
               if isinstance(layer, GraphAttention) and layer.source is not None] or learned
    return [place for place, value in density.items()
            if learned and _is_lost(sources, place, value)]


def _is_lost(sources: list[BlockModelSource | LearnedMaskSource | None], place: str,
             density: float) -> bool:
    # Layers or heads that share a graph have one name and one source in common.
    layer, head = (int(name.removeprefix(kind)) if name.startswith(kind) else 0
                   for kind, name in zip(('layer', 'head'), place.split('/')))
    source = sources[layer]
    if isinstance(source, BlockModelSource):
        return density <= KEPT * source.exploration
    return (source is not None and source.mode != 'soft'
            and not bool((source.logit[head] > 0).any()))


def new_logger(name: LoggerName, folder: Path, *, is_resumed: bool) -> Logger:
    """Return a logger that writes into ``folder/name``, or a subfolder ``version_N`` of a resumed
    run, because CSVLogger overwrites its file."""
    if name != 'csv' and find_spec(name) is None:
        raise ImportError(f"'logger' {name!r} requires a package that is not installed: pip "
                          f"install {name}")
    if name == 'csv':
        return CSVLogger(folder, name, version=None if is_resumed else '')
    if name == 'tensorboard':
        return TensorBoardLogger(folder, name, version='')
    # without this folder, W&B writes to the temporary directory
    folder.mkdir(parents=True, exist_ok=True)
    return WandbLogger(name=folder.name, save_dir=folder, project='graphattn', offline=True)


def close(logger: Logger | None) -> None:
    """Close the log of a run, because the next run of this process would append to it."""
    if isinstance(logger, WandbLogger):
        logger.experiment.finish()
