r"""Training and test of the model of a config file.

    python -m experiments.train fit --config experiments/configs/digits/sbm.yaml
    python -m experiments.train fit --config ... --ckpt_path runs/digits/sbm/checkpoints/last.ckpt
    python -m experiments.train test --run runs/digits/sbm

``fit`` ends with a test of the last checkpoint, or of the checkpoint that ``--select_on`` chooses.
The folder of the run is ``--trainer.default_root_dir``. With ``--seeds 3``, this folder contains
three runs, with the seed ``--seed_everything`` and the next two seeds.
"""

import logging
import os
import re
import sys
import warnings
from argparse import ArgumentError
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from pydoc import locate
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
import yaml
from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    ProgressBar,
    StochasticWeightAveraging,
    TQDMProgressBar,
)
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.cli import ArgsType, LightningCLI
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from numba.core.event import install_listener

from experiments.data.sequences import check_at_least
from experiments.modules import Training
from experiments.modules.measures import Baseline
from experiments.runs import one_run
from experiments.runs.attention import fit_source, taken, with_attention
from experiments.runs.checkpoints import (
    BEST,
    LAST,
    DurableCheckpoints,
    EpochCheckpoints,
    StepCheckpoints,
    newest_good,
    newest_in,
    read_checkpoint,
    say,
)
from experiments.runs.command import run_or_exit
from experiments.runs.config_file import Parser, bound_aliases, built
from experiments.runs.finite import StayFinite
from experiments.runs.run_folder import (
    LoggerName,
    RunFolder,
    SaveConfig,
    close,
    config_text,
    new_logger,
)
from experiments.runs.seeds import train_seeds
from experiments.runs.shipped import OF_GRAPHS, OF_SEQUENCES, attention_names
from experiments.runs.summary import NAME as SUMMARY
from experiments.runs.summary import read_summary
from experiments.runs.together import EndTogether
from experiments.signals import ending_signals, status_of
from experiments.tasks.batch_stream import batches_of_run
from graphattn.freed_memory import keeping_freed_memory
from graphattn.utils.building import BoundedBuilding
from graphattn.utils.files import check_folder
from graphattn.utils.trust import importing_only, trusting

COMMANDS = {'fit': 'Trains a model and tests it.',
            'validate': 'Evaluates a checkpoint on development data.',
            'test': 'Tests a checkpoint.'}
LESS_IS_BETTER = {'loss', 'perplexity', 'bits', 'mae'}
MORE_IS_BETTER = {'accuracy', 'exact', 'f1', 'matthews', 'pearson', 'precision', 'auc', 'spearman'}
SPAWNING = 'ddp_spawn', 'ddp_fork', 'ddp_notebook'
_PARSERS: dict[str, Parser] = {}
WATCHING = 'lightning.pytorch.callbacks',  # modules that the config of a test may name as well
WHAT_IS_TRAINED = '--config', '-c', '--model', '--data.help', '--help', '-h'  # or requests help


class StepSeeds(Callback):
    """Make all randomness of a batch a function of (seed, stage, process, batch index)."""

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_batch_start(self, trainer: L.Trainer, *_) -> None:
        # global_step is not used, because it does not change while gradients accumulate.
        self._seed('train', trainer.global_rank, batches_of_run(trainer))

    def on_validation_batch_start(self, trainer: L.Trainer, model, batch, batch_idx, *_) -> None:
        self._seed('val', trainer.global_rank, batch_idx)

    def on_test_batch_start(self, trainer: L.Trainer, model, batch, batch_idx, *_) -> None:
        self._seed('test', trainer.global_rank, batch_idx)

    def _seed(self, stage: str, rank: int, number: int) -> None:
        entropy = np.random.SeedSequence([self.seed, *stage.encode(), rank, number])
        torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0]))


class StayStopped(Callback):
    """Keep a resumed run ended if EarlyStopping had ended it, which Lightning forgets."""

    def on_fit_start(self, trainer: L.Trainer, *_) -> None:
        trainer.should_stop |= any(
            isinstance(callback, EarlyStopping)
            and callback.stopping_reason is not EarlyStoppingReason.NOT_STOPPED
            for callback in trainer.callbacks)


class TrainCLI(LightningCLI):
    """Lightning's command line with this project's callbacks. ``fit`` ends with a test.

    Lightning's own subcommands are not used, because they are nested parsers, which parse every
    option twice.
    """

    def __init__(self, command: str, args: ArgsType):
        self.command, self._given = command, args
        super().__init__(
            Training, subclass_mode_model=True, subclass_mode_data=True, args=args, run=False,
            parser_class=Parser,
            parser_kwargs={'exit_on_error': False, 'description': COMMANDS[command]},
            save_config_callback=SaveConfig, seed_everything_default=0,
            trainer_defaults={'default_root_dir': 'runs/unnamed', 'logger': False,
                              'num_sanity_val_steps': 0, 'enable_model_summary': False},
            auto_configure_optimizers=False, load_from_checkpoint_support=False)

    def setup_parser(self, *arguments: Any) -> None:
        """Build the parser, a tenth of a second, or take it from an earlier run in this process."""
        if self.command not in _PARSERS:
            super().setup_parser(*arguments)
            self.parser.is_nested = False
            _PARSERS[self.command] = self.parser
        self.parser = _PARSERS[self.command]

    def add_arguments_to_parser(self, parser) -> None:
        # main replaces this option before words are parsed
        parser.add_argument('--attention', type=str | None, default=None,
                            help='The attention of the model: '
                                 f'{", ".join(attention_names(OF_SEQUENCES))}; of a graph '
                                 f'transformer: {", ".join(attention_names(OF_GRAPHS))}. Short for '
                                 'a second config, with a folder of its own for the run.')
        parser.add_argument('--checkpoint_every', type=PositiveInt | None, default=None,
                            help='Number of steps between checkpoints, in addition to the '
                                 'checkpoint after each epoch.')
        parser.add_argument('--select_on', type=str | None, default=None,
                            help='Test the checkpoint with the best value of this development '
                                 'metric, such as val/accuracy; if omitted, the last '
                                 'checkpoint.')
        parser.add_argument('--ckpt_path', type=str | None, default=None,
                            help='A checkpoint. The command fit resumes from it, and the other '
                                 'commands evaluate it.')
        parser.add_argument('--logger', type=LoggerName | None, default=None,
                            help='Further loggers of the metrics, which write below the run\'s '
                                 'folder.')
        parser.add_argument('--trust', type=str, default='',
                            help='Packages whose classes the config of a test, or of a '
                                 'pre-trained model, may name, separated by commas.')
        parser.add_argument('--seeds', type=PositiveInt | None, default=None,
                            help='Number of runs, with the seed and the seeds after it. Each run '
                                 'has its own folder. At the end, the mean and standard '
                                 'deviation of the tests are reported.')

    def parse_arguments(self, parser, args) -> None:
        super().parse_arguments(parser, args)
        _check_seed(self.config.seed_everything)
        if self.config.select_on is not None:
            best_is(self.config.select_on)
        if self.config.logger is not None and self.config.trainer.logger:
            raise ValueError("'logger' and 'trainer.logger' must not both be given (got both); put "
                             "all loggers into 'trainer.logger'")
        self.config.ckpt_path = _checkpoint(self.command, self.config.ckpt_path)
        check_folder('trainer.default_root_dir', Path(self.config.trainer.default_root_dir))
        _check_name(self.config.trainer.default_root_dir)
        _check_trainer(self.config.trainer)
        if self.config.seeds is not None:
            _check_seeds(self.command, self.config)

    def instantiate_classes(self) -> None:
        if self.config.seeds is not None:
            return  # the run of each seed builds its own classes
        data = _data_filling(self.config)
        fit_source(self.config)
        with nullcontext() if self.command == 'fit' else BoundedBuilding(
                read_checkpoint(Path(self.config.ckpt_path))['state_dict'].values()):
            super().instantiate_classes()
        if data is not None:
            self.datamodule = data  # this data module has already read its files

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        options = self.config_init.trainer
        folder = Path(options.default_root_dir)
        checkpoint = partial(EpochCheckpoints, folder / 'checkpoints', enable_version_counter=False)
        given = _listed(options.callbacks)
        self.stay_finite = StayFinite()
        self.run_folder = RunFolder(one_run.identity(config_text(self.parser, self.config)))
        tell = partial(self.run_folder.tell, folder=folder)
        callbacks = [*given, StepSeeds(int(os.environ['PL_GLOBAL_SEED'])), self.stay_finite,
                     Baseline(), self.run_folder, StayStopped(), EndTogether(tell)]
        self.best = None
        if (metric := self.config.select_on) is not None:
            # This callback precedes the others, so that their checkpoints record which checkpoint
            # is best.
            self.best = checkpoint(filename=Path(BEST).stem, monitor=metric, mode=best_is(metric))
            callbacks.append(self.best)
        callbacks.append(checkpoint(filename=Path(LAST).stem, save_on_train_epoch_end=True))
        if (every := self.config.checkpoint_every) is not None:
            callbacks.append(StepCheckpoints(folder / 'checkpoints' / LAST, every))
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        shows_bar = options.enable_progress_bar
        # in a file, every update of a bar would be a new line
        if shows_bar is None and not has_bar:
            kwargs['enable_progress_bar'] = shows_bar = sys.stdout.isatty()
        if shows_bar and not has_bar:
            callbacks.append(TQDMProgressBar())
        _check_callbacks(given, callbacks)
        plugins = [*_listed(options.plugins), DurableCheckpoints()]
        if (name := self.config.logger) is not None:
            kwargs['logger'] = new_logger(name, folder,
                                          is_resumed=self.config.ckpt_path is not None
                                          or one_run.has_checkpoint(folder))
        trainer = super().instantiate_trainer(callbacks=callbacks, plugins=plugins, **kwargs)
        # With max_steps, Lightning would begin the epoch again if a checkpoint is from the end of
        # the epoch. That is right only for an epoch that max_steps has cut.
        loop = trainer.fit_loop
        loop._iteration_based_training = lambda: (
            trainer.max_steps != -1 and not loop.epoch_loop.batch_progress.is_last_batch)
        return trainer

    def run(self) -> None:
        """Run the command ``fit``, ``validate`` or ``test`` that was given to the constructor."""
        folder = Path(self.config.trainer.default_root_dir)
        if self.command == 'validate':
            self._check_tested(Path(self.config.ckpt_path), folder)
            self.trainer.validate(model=self.model, datamodule=self.datamodule, weights_only=True,
                                  ckpt_path=self.config.ckpt_path)
            return
        with one_run.alone_in(folder):
            if self.config.seeds is not None:
                self._run_seeds(folder)
            elif self.command == 'test':
                self._check_tested(Path(self.config.ckpt_path), folder)
                self._test(self.config.ckpt_path)
            elif self.config.ckpt_path is None and one_run.is_finished(
                    folder, config_text(self.parser, self.config)):
                path = newest_in(folder / 'checkpoints')
                further = path and f'. To train it further, pass more epochs and --ckpt_path {path}'
                say(f"{folder} already contains this run, which is finished; nothing is left to "
                    f"do{further or ''}")
            else:
                self._fit(self._begin(folder))

    def _begin(self, folder: Path) -> str | None:
        """Decide whether this run is new or resumed, and return the checkpoint that it resumes
        from, or ``None``."""
        checkpoint = self.config.ckpt_path
        if checkpoint is None and one_run.has_checkpoint(folder):
            checkpoint = _checkpoint('fit', str(folder / 'checkpoints' / LAST))
            say(f'{folder} contains this run, unfinished; resuming from {checkpoint}')
        elif checkpoint is not None and not _is_in(folder, Path(checkpoint)):
            path = newest_in(folder / 'checkpoints')
            if path or (folder / one_run.CONFIG).exists():
                resume = path and f', or resume the run in this folder by --ckpt_path {path}'
                raise ValueError(f"'trainer.default_root_dir' must not contain another run than "
                                 f"'ckpt_path' (got {folder} and {checkpoint}); choose another "
                                 f"folder{resume or ''}")
            self.run_folder.go_on = 'go on with --ckpt_path, now'
        # A batch is divided over all processes, so a resumed run needs as many processes as before.
        self.run_folder.identity['options']['trainer.devices'] = self.trainer.world_size
        if checkpoint is not None:
            state = read_checkpoint(Path(checkpoint))
            one_run.check_goes_on(Path(checkpoint), state, self.run_folder.identity,
                                  self.config.trainer)
            self.model.on_load_checkpoint(state)  # raises if the checkpoint does not fit the model
        return checkpoint

    def _fit(self, checkpoint: str | None) -> None:
        """Train the model from ``checkpoint`` on, or from the beginning, and test it."""
        try:
            with install_listener('numba:compile', self.run_folder.compiling):
                self.trainer.fit(model=self.model, datamodule=self.datamodule, weights_only=True,
                                 ckpt_path=checkpoint)
        except ValueError as error:
            if not self.stay_finite.step or 'learning rate' in str(error):
                raise
            # The model raises on non-finite values but does not know the step, so the step is added
            # here.
            raise ValueError(f'{error}, {self.stay_finite.where}') from error
        self._test(None if self.best is None else self._best_path())

    def _test(self, checkpoint: str | None) -> None:
        self.trainer.test(model=self.model, datamodule=self.datamodule, weights_only=True,
                          ckpt_path=checkpoint, verbose=False)
        for logger in self.trainer.loggers:
            close(logger)

    def _check_tested(self, checkpoint: Path, folder: Path) -> None:
        """Raise an error if a test would overwrite the results of another run."""
        is_its_own = _is_in(folder, checkpoint)
        if self.command == 'test' and not is_its_own and (folder / one_run.CONFIG).exists():
            raise ValueError(f"'trainer.default_root_dir' must not contain another run than "
                             f"'ckpt_path' (got {folder} and {checkpoint}); choose another folder")
        state = read_checkpoint(checkpoint)
        saved = one_run.identity_in(state) or {'inputs': {}}
        config = yaml.safe_load(config_text(self.parser, self.config))
        name = one_run.changed_input(saved['inputs'], config)
        if name is not None and self.command == 'test' and is_its_own:
            raise ValueError(f"{name!r} must name the data on which {folder} was trained and "
                             f"tested; to test on other data, choose another "
                             f"'trainer.default_root_dir'")
        if name is not None:
            say(f'{name!r} names other data than the training of {checkpoint}')
        self.model.on_load_checkpoint(state)  # raises if the checkpoint does not fit the model
        if is_its_own and (folder / SUMMARY).exists():
            read_summary(folder)  # its entries on the training will be kept

    def _best_path(self) -> str | None:
        """Return the best checkpoint by ``select_on``, or ``None`` if nothing was evaluated."""
        path = self.best.best_model_path or None
        if path is None:
            rank_zero_warn(f"testing the last weights: 'select_on' {self.config.select_on!r} was "
                           f"not measured, because the training had no evaluation")
        return path

    def _run_seeds(self, folder: Path) -> None:
        if (folder / one_run.CONFIG).exists() or one_run.has_checkpoint(folder):
            raise ValueError(f"'trainer.default_root_dir' must not contain a run of a single seed "
                             f"(got {folder}); choose another folder, or omit 'seeds'")
        first = int(self.config.seed_everything)
        train_seeds(main, [*taken('--seeds', self._given)[1], '--seeds', 'null'], folder,
                    range(first, first + self.config.seeds))


def best_is(metric: str) -> Literal['min', 'max']:
    """Return whether the minimum or the maximum of a metric is best, judging by the words in its
    name."""
    words = set(re.split('[/_]', metric))
    if not words & (LESS_IS_BETTER | MORE_IS_BETTER):
        raise ValueError(f"'select_on' must contain one of {', '.join(sorted(LESS_IS_BETTER))} "
                         f"(lower is better) or {', '.join(sorted(MORE_IS_BETTER))} (higher is "
                         f"better) in the name of the metric (got {metric!r})")
    return 'min' if words & LESS_IS_BETTER else 'max'


def _check_name(folder: str | Path) -> None:
    """Raise an error if config.yaml cannot store the name of the folder of a run."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"'trainer.default_root_dir' must be a path in UTF-8 (got "
                         f"{str(folder)!r})") from error


def _check_trainer(options: Namespace) -> None:
    """Raise an error for options that Lightning accepts, but that fail later or do harm."""
    for name, least in (('accumulate_grad_batches', 1), ('check_val_every_n_epoch', 1),
                        ('gradient_clip_val', 0)):
        if options[name] is not None:
            check_at_least(least, **{f'trainer.{name}': options[name]})
    if options.overfit_batches:
        raise ValueError(f"'trainer.overfit_batches' must be 0, because the data order their own "
                         f"batches to be resumable (got {options.overfit_batches}); use "
                         f"'trainer.limit_train_batches' for a short epoch")
    if str(options.strategy).startswith(SPAWNING):
        raise ValueError(f"'trainer.strategy' must be 'ddp' or another strategy that launches "
                         f"scripts (got {options.strategy}), because forked or spawned processes "
                         f"cannot return the results of a test")
    if options.limit_test_batches == 0:
        raise ValueError(f"'trainer.limit_test_batches' must not be 0, because each run ends with "
                         f"a test (got {options.limit_test_batches}); use 1 for a short test")


def _check_callbacks(given: list[Callback], callbacks: list[Callback]) -> None:
    """Raise an error if a checkpoint could not store averaged weights, or the state of the
    callbacks ``given`` under different keys."""
    if any(isinstance(callback, StochasticWeightAveraging) for callback in given):
        raise ValueError("'trainer.callbacks' must not contain StochasticWeightAveraging, because "
                         "no checkpoint contains the averaged weights that would be tested; use "
                         "EMAWeightAveraging, which saves the averaged weights")
    keys = [callback.state_key for callback in callbacks
            if type(callback).state_dict is not Callback.state_dict]
    for callback in given:
        if keys.count(callback.state_key) > 1:
            raise ValueError(f"'trainer.callbacks' must contain each callback only once, and none "
                             f"that each run adds itself (got a second {callback.state_key}); omit "
                             f"this callback, or let it monitor another metric")


def _check_seed(seed: int | bool) -> None:
    if isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"'seed_everything' must be an integer from 0 to {2 ** 32 - 1}, because "
                         f"all random numbers derive from this seed (got {seed})")


def _check_seeds(command: str, options: Namespace) -> None:
    if command != 'fit' or options.ckpt_path is not None:
        raise ValueError("'seeds' requires the command fit without 'ckpt_path'; run fit with the "
                         "same options again to resume killed runs")
    _check_seed(options.seed_everything + options.seeds - 1)


def _data_filling(options: Namespace) -> L.LightningDataModule | None:
    """Return the data module if it has a method ``fill_options``, which is called first."""
    kind = locate(options.data.class_path) if options.get('data') else None
    if not hasattr(kind, 'fill_options'):
        return None
    data = built(options.as_dict(), None, data=L.LightningDataModule).data
    data.fill_options(options)
    return data


def _is_in(folder: Path, checkpoint: Path) -> bool:
    return checkpoint.absolute().parent.resolve() == (folder / 'checkpoints').resolve()


def _of_run(options: list[str]) -> list[str]:
    """Replace the option ``--run`` by the config and the checkpoint that ended this run."""
    runs, rest = taken('--run', options)
    if not any(runs[-1:]):
        return options
    checkpoints = Path(runs[-1], 'checkpoints')
    ended = checkpoints / (BEST if (checkpoints / BEST).exists() else LAST)
    return ['--config', f'{runs[-1]}/config.yaml', '--ckpt_path', str(ended),
            *rest]


def _checkpoint(command: str, path: str | None) -> str | None:
    """Return the path of the checkpoint to resume from or to evaluate, or ``None`` if a training
    starts from the beginning."""
    if path is None and command != 'fit':
        raise ValueError(f"'ckpt_path' must be given for {command}, because without a checkpoint "
                         f"an untrained model would be evaluated; pass --ckpt_path "
                         f"RUN/checkpoints/last.ckpt")
    try:
        if path is not None and command == 'fit':
            return str(newest_good(Path(path)))
        if path is not None:
            read_checkpoint(Path(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"'ckpt_path' cannot be read: {path} ({error})") from error
    return path


def _listed(value: Any) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


def main(args: list[str] | None = None) -> None:
    """Run the command ``experiments.train`` with the given words, or else those of this process."""
    for name in ('lightning.pytorch', 'lightning.fabric'):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning calls torch in a way that is deprecated by torch.
    warnings.filterwarnings('ignore', message=r'.*isinstance\(treespec, LeafSpec\)')
    # Loggers receive only metrics of whole epochs here, so the warning does not apply.
    warnings.filterwarnings('ignore', message='The number of training batches')
    warnings.filterwarnings('ignore', message='Checkpoint directory .* exists and is not empty')
    # Studies and tests pass arguments on purpose, so the warning does not apply.
    warnings.filterwarnings('ignore', message="LightningCLI's args parameter")
    bound_aliases()
    command, *options = (sys.argv[1:] if args is None else args) or ['--help']
    if command in ('-h', '--help'):
        print(__doc__)
        return
    if command not in COMMANDS:
        raise ValueError(f"the command must be one of {', '.join(COMMANDS)} (got {command!r})")
    if command != 'fit':
        options = _of_run(options)
    if not any(option.startswith(WHAT_IS_TRAINED) for option in options):
        raise ValueError("'config' must be given; pass your own file, or the name of a config in "
                         "experiments/configs, as in graphattn train --config digits/sbm "
                         "(graphattn --help lists the names)")
    try:
        with ending_signals(), keeping_freed_memory(), trusting(
                ','.join(taken('--trust', options)[0]).split(',')):
            # The config of a training may run any code, but a tested run may come from a stranger.
            with nullcontext() if command == 'fit' else importing_only(WATCHING):
                cli = TrainCLI(command, with_attention(options))
            cli.run()
    except ArgumentError as error:
        raise ValueError(str(error)) from error
    except MisconfigurationException as error:
        raise ValueError(f"'trainer' cannot be set up: {error}") from error
    except (KeyError, RuntimeError) as error:
        if 'SLURM' not in str(error):
            raise
        raise ValueError(f"the SLURM variables must be set by srun ({error}); start the processes "
                         f"by srun --ntasks-per-node=N, or unset SLURM_NTASKS") from error
    except SystemExit as stop:
        # RunFolder has already reported an interrupt, but Lightning exits as if the run had failed.
        if isinstance(stop.__context__, KeyboardInterrupt):
            stop.code = status_of(stop.__context__)
        raise


if __name__ == '__main__':
    run_or_exit(main)
