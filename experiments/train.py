r"""Trains and tests a model that a config file describes.

    python -m experiments.train fit --config experiments/configs/digits/sbm.yaml
    python -m experiments.train fit --config ... --ckpt_path runs/digits/sbm/checkpoints/last.ckpt
    python -m experiments.train test --config ... --ckpt_path runs/digits/sbm/checkpoints/last.ckpt

``fit`` also tests in the end: the last checkpoint, or the one that ``--select_on`` chooses. The
run's folder is ``--trainer.default_root_dir``. With ``--seeds 3`` there are three runs in it, of
``--seed_everything`` and the next numbers.
"""

from __future__ import annotations

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

from experiments.data.sequences import check_at_least
from experiments.modules import Training
from experiments.runs.checkpoints import (
    BEST,
    LAST,
    DurableCheckpoints,
    EpochCheckpoints,
    StepCheckpoints,
    newest_good,
    read_checkpoint,
    say,
)
from experiments.runs.command import ending_signals, run_or_exit, status_of
from experiments.runs.config_file import Parser, bound_aliases, built
from experiments.runs.finite import StayFinite
from experiments.runs.loggers import LoggerName, close, new_logger
from experiments.runs.one_run import (
    CONFIG,
    alone_in,
    changed_input,
    check_goes_on,
    has_checkpoint,
    identity,
    identity_in,
    is_finished,
)
from experiments.runs.run_folder import RunFolder, SaveConfig, config_text
from experiments.runs.seeds import train_seeds
from experiments.runs.summary import NAME as SUMMARY
from experiments.runs.summary import read_summary
from experiments.runs.together import EndTogether
from experiments.tasks.batch_stream import batches_of_run
from graphattn.freed_memory import keeping_freed_memory
from graphattn.utils.files import check_folder
from graphattn.utils.trust import importing_only, trusting

COMMANDS = {'fit': 'Trains a model and tests it.',
            'validate': 'Evaluates a checkpoint on development data.',
            'test': 'Tests a checkpoint.'}
LESS_IS_BETTER = {'loss', 'perplexity', 'bits'}
MORE_IS_BETTER = {'accuracy', 'exact', 'f1', 'matthews', 'pearson', 'spearman'}
SPAWNING = 'ddp_spawn', 'ddp_fork', 'ddp_notebook'
_PARSERS: dict[str, Parser] = {}
WATCHING = 'lightning.pytorch.callbacks',  # what a config of a test may name besides
WHAT_IS_TRAINED = '--config', '-c', '--model', '--data.help', '--help', '-h'  # or asks of it


class StepSeeds(Callback):
    """Makes all randomness of a batch a function of (seed, stage, process, number of the batch).

    A run that resumes then draws what the uninterrupted one would have drawn: its
    sampled graphs, dropout and augmentation. Evaluations draw the same graphs each time.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_batch_start(self, trainer: L.Trainer, *_) -> None:
        # The step would stand still while gradients accumulate.
        self._seed('train', trainer.global_rank, batches_of_run(trainer))

    def on_validation_batch_start(self, trainer: L.Trainer, model, batch, batch_idx, *_) -> None:
        self._seed('val', trainer.global_rank, batch_idx)

    def on_test_batch_start(self, trainer: L.Trainer, model, batch, batch_idx, *_) -> None:
        self._seed('test', trainer.global_rank, batch_idx)

    def _seed(self, stage: str, rank: int, number: int) -> None:
        entropy = np.random.SeedSequence([self.seed, *stage.encode(), rank, number])
        torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0]))


class StayStopped(Callback):
    """Trains a run no further that EarlyStopping has ended, which Lightning forgets."""

    def on_fit_start(self, trainer: L.Trainer, *_) -> None:
        trainer.should_stop |= any(
            isinstance(callback, EarlyStopping)
            and callback.stopping_reason is not EarlyStoppingReason.NOT_STOPPED
            for callback in trainer.callbacks)


class TrainCLI(LightningCLI):
    """Lightning's command line with this project's callbacks; ``fit`` ends with a test.

    Lightning's own subcommands are parsers within a parser, which read every option twice.

    Args:
        command: What the options are for, one of COMMANDS.
        args: The options, as a command line gives them or as a config.
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
        """Set up the parser of the command, which all runs of a process share because it takes a
        tenth of a second to make."""
        if self.command not in _PARSERS:
            super().setup_parser(*arguments)
            self.parser.is_nested = False
            _PARSERS[self.command] = self.parser
        self.parser = _PARSERS[self.command]

    def add_arguments_to_parser(self, parser) -> None:
        parser.add_argument('--checkpoint_every', type=PositiveInt | None, default=None,
                            help='Steps between checkpoints, besides one at the end of an epoch.')
        parser.add_argument('--select_on', type=str | None, default=None,
                            help='A metric of development, such as val/accuracy: the checkpoint '
                                 'that is best by it is tested; otherwise the last one.')
        parser.add_argument('--ckpt_path', type=str | None, default=None,
                            help='A checkpoint: fit goes on from it, the others evaluate it.')
        parser.add_argument('--logger', type=LoggerName | None, default=None,
                            help='What else records the metrics, below the run\'s folder.')
        parser.add_argument('--trust', type=str, default='',
                            help='Packages, with commas between them, whose classes the config of '
                                 'a test, or of a pre-trained model, may name.')
        parser.add_argument('--seeds', type=PositiveInt | None, default=None,
                            help='So many runs, of the seed and the next ones, each in its own '
                                 'folder; then mean and standard deviation of what was tested.')

    def parse_arguments(self, parser, args) -> None:
        super().parse_arguments(parser, args)
        _check_seed(self.config.seed_everything)
        if self.config.select_on is not None:
            best_is(self.config.select_on)
        if self.config.logger is not None and self.config.trainer.logger:
            raise ValueError("'logger' and 'trainer.logger' exclude one another (got both); give "
                             "all loggers by 'trainer.logger'")
        self.config.ckpt_path = _checkpoint(self.command, self.config.ckpt_path)
        check_folder('trainer.default_root_dir', Path(self.config.trainer.default_root_dir))
        _check_name(self.config.trainer.default_root_dir)
        _check_trainer(self.config.trainer)
        if self.config.seeds is not None:
            _check_seeds(self.command, self.config)

    def instantiate_classes(self) -> None:
        if self.config.seeds is not None:
            return  # each run has its own
        data = _data_filling(self.config)
        super().instantiate_classes()
        if data is not None:
            self.datamodule = data  # which has been read

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        options = self.config_init.trainer
        folder = Path(options.default_root_dir)
        checkpoint = partial(EpochCheckpoints, folder / 'checkpoints', enable_version_counter=False)
        given = _listed(options.callbacks)
        self.stay_finite = StayFinite()
        self.run_folder = RunFolder(identity(config_text(self.parser, self.config)))
        callbacks = [*given, StepSeeds(int(os.environ['PL_GLOBAL_SEED'])), self.stay_finite,
                     self.run_folder, StayStopped(), EndTogether(self._tell)]
        self.best = None
        if (metric := self.config.select_on) is not None:
            # Before the others, whose checkpoints then know which one is best.
            self.best = checkpoint(filename=Path(BEST).stem, monitor=metric, mode=best_is(metric))
            callbacks.append(self.best)
        callbacks.append(checkpoint(filename=Path(LAST).stem, save_on_train_epoch_end=True))
        if (every := self.config.checkpoint_every) is not None:
            callbacks.append(StepCheckpoints(folder / 'checkpoints' / LAST, every))
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        shows_bar = options.enable_progress_bar
        if shows_bar is None and not has_bar:  # it is drawn there, and would fill a file
            kwargs['enable_progress_bar'] = shows_bar = sys.stdout.isatty()
        if shows_bar and not has_bar:
            callbacks.append(TQDMProgressBar())
        _check_callbacks(given, callbacks)
        plugins = [*_listed(options.plugins), DurableCheckpoints()]
        if (name := self.config.logger) is not None:
            kwargs['logger'] = new_logger(name, folder,
                                          is_resumed=self.config.ckpt_path is not None
                                          or has_checkpoint(folder))
        return super().instantiate_trainer(callbacks=callbacks, plugins=plugins, **kwargs)

    def run(self) -> None:
        """Run the command."""
        folder = Path(self.config.trainer.default_root_dir)
        if self.command == 'validate':
            self._check_tested(Path(self.config.ckpt_path), folder)
            self.trainer.validate(model=self.model, datamodule=self.datamodule, weights_only=True,
                                  ckpt_path=self.config.ckpt_path)
            return
        with alone_in(folder):
            if self.config.seeds is not None:
                self._run_seeds(folder)
            elif self.command == 'test':
                self._check_tested(Path(self.config.ckpt_path), folder)
                self._test(self.config.ckpt_path)
            elif self.config.ckpt_path is None and is_finished(
                    folder, config_text(self.parser, self.config)):
                say(f"{folder} holds this run, which is finished, and it is kept; to train it "
                    f"further, give more epochs and --ckpt_path {folder / 'checkpoints' / LAST}")
            else:
                self._fit(self._begin(folder))

    def _begin(self, folder: Path) -> str | None:
        """Return the checkpoint that a run goes on from, if it does not begin anew."""
        checkpoint = self.config.ckpt_path
        if checkpoint is None and has_checkpoint(folder):
            checkpoint = _checkpoint('fit', str(folder / 'checkpoints' / LAST))
            say(f'{folder} holds this run, which was ended; it goes on from {checkpoint}')
        elif checkpoint is not None and not _is_in(folder, Path(checkpoint)):
            if has_checkpoint(folder) or (folder / CONFIG).exists():
                raise ValueError(f"'trainer.default_root_dir' holds another run than that of "
                                 f"'ckpt_path' (got {folder} and {checkpoint}); choose another "
                                 f"folder, or go on with --ckpt_path "
                                 f"{folder / 'checkpoints' / LAST}")
            self.run_folder.go_on = 'go on with --ckpt_path, now'
        # A batch is of all processes, so the next one of another number of them would not follow.
        self.run_folder.identity['options']['trainer.devices'] = self.trainer.world_size
        if checkpoint is not None:
            state = read_checkpoint(Path(checkpoint))
            check_goes_on(Path(checkpoint), state, self.run_folder.identity, self.config.trainer)
            self.model.on_load_checkpoint(state)  # does it fit?
        return checkpoint

    def _fit(self, checkpoint: str | None) -> None:
        """Train and tests."""
        try:
            self.trainer.fit(model=self.model, datamodule=self.datamodule, weights_only=True,
                             ckpt_path=checkpoint)
        except ValueError as error:
            if not self.stay_finite.step or 'learning rate' in str(error):
                raise
            # A model, which refuses what is not finite, knows nothing of the training.
            raise ValueError(f'{error}, {self.stay_finite.where}') from error
        self._test(None if self.best is None else self._best_path())

    def _test(self, checkpoint: str | None) -> None:
        self.trainer.test(model=self.model, datamodule=self.datamodule, weights_only=True,
                          ckpt_path=checkpoint, verbose=False)
        for logger in self.trainer.loggers:
            close(logger)

    def _check_tested(self, checkpoint: Path, folder: Path) -> None:
        """Refuse to write over a run what is not of it."""
        is_its_own = _is_in(folder, checkpoint)
        if self.command == 'test' and not is_its_own and (folder / CONFIG).exists():
            raise ValueError(f"'trainer.default_root_dir' holds another run than that of "
                             f"'ckpt_path' (got {folder} and {checkpoint}); choose another folder")
        state = read_checkpoint(checkpoint)
        saved = identity_in(state) or {'inputs': {}}
        name = changed_input(saved['inputs'], yaml.safe_load(config_text(self.parser, self.config)))
        if name is not None and self.command == 'test' and is_its_own:
            raise ValueError(f"{name!r} names other data than {folder} was trained and tested on; "
                             f"choose another 'trainer.default_root_dir' to test on them")
        if name is not None:
            say(f'{name!r} names other data than those of the training of {checkpoint}')
        self.model.on_load_checkpoint(state)  # does it fit?
        if is_its_own and (folder / SUMMARY).exists():
            read_summary(folder)  # which keeps what it says of the training

    def _tell(self, what: str) -> None:
        self.run_folder.tell(what, Path(self.config.trainer.default_root_dir))

    def _best_path(self) -> str | None:
        """Return the checkpoint that is best by ``select_on``, or None where nothing was
        evaluated."""
        path = self.best.best_model_path or None
        if path is None:
            rank_zero_warn(f"the last weights are tested: 'select_on' {self.config.select_on!r} "
                           f"was not measured, because no part of the training was evaluated")
        return path

    def _run_seeds(self, folder: Path) -> None:
        if (folder / CONFIG).exists() or has_checkpoint(folder):
            raise ValueError(f"'trainer.default_root_dir' holds a run of one seed (got {folder}); "
                             f"choose another folder for 'seeds'")
        first = int(self.config.seed_everything)
        train_seeds(main, [*_without('--seeds', self._given), '--seeds', 'null'], folder,
                    range(first, first + self.config.seeds))


def best_is(metric: str) -> Literal['min', 'max']:
    """Return whether the least or the most of a metric is best, by the words in its name.

    Raises:
        ValueError: It has none of these words.
    """
    words = set(re.split('[/_]', metric))
    if not words & (LESS_IS_BETTER | MORE_IS_BETTER):
        raise ValueError(f"'select_on' must be a metric of development with one of these words: "
                         f"{', '.join(sorted(LESS_IS_BETTER))}, whose least is best, or "
                         f"{', '.join(sorted(MORE_IS_BETTER))}, whose most is (got {metric!r})")
    return 'min' if words & LESS_IS_BETTER else 'max'


def _check_name(folder: str | Path) -> None:
    """Refuse the name of a folder that config.yaml cannot say."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"'trainer.default_root_dir' must have a name in UTF-8 (got "
                         f"{str(folder)!r})") from error


def _check_trainer(options: Namespace) -> None:
    """Refuse what Lightning divides by, or takes without a look: gradients that are clipped to a
    negative norm point uphill, data that order their batches cannot be ordered by it, and without a
    test there would be no summary."""
    for name, least in (('accumulate_grad_batches', 1), ('check_val_every_n_epoch', 1),
                        ('gradient_clip_val', 0)):
        if options[name] is not None:
            check_at_least(least, **{f'trainer.{name}': options[name]})
    if options.overfit_batches:
        raise ValueError(f"'trainer.overfit_batches' must be 0 (got {options.overfit_batches}): "
                         f"batches come in the data's own order, so that a run can be resumed; "
                         f"'trainer.limit_train_batches' makes an epoch short")
    if str(options.strategy).startswith(SPAWNING):
        raise ValueError(f"'trainer.strategy' must be one such as ddp (got {options.strategy}): of "
                         f"processes that are forked or spawned nothing comes back to be tested")
    if options.limit_test_batches == 0:
        raise ValueError(f"'trainer.limit_test_batches' must not be 0 (got "
                         f"{options.limit_test_batches}): a run ends with a test, which its "
                         f"summary.json is; 1 is a short one")


def _check_callbacks(given: list[Callback], callbacks: list[Callback]) -> None:
    """Refuse those of the user's, among all callbacks, whose weights are in no checkpoint or whose
    state would be there under the name of another one's."""
    if any(isinstance(callback, StochasticWeightAveraging) for callback in given):
        raise ValueError("'trainer.callbacks' must not have StochasticWeightAveraging, whose "
                         "average would be tested and is in no checkpoint; that of "
                         "EMAWeightAveraging is")
    keys = [callback.state_key for callback in callbacks
            if type(callback).state_dict is not Callback.state_dict]
    for callback in given:
        if keys.count(callback.state_key) > 1:
            raise ValueError(f"'trainer.callbacks' must be different from one another and from "
                             f"those that each run has (got a second {callback.state_key}); leave "
                             f"it out, or let it monitor something else")


def _check_seed(seed: int | bool) -> None:
    if isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"'seed_everything' must be a number from 0 to {2**32 - 1} (got {seed}); "
                         f"every step's randomness comes from it")


def _check_seeds(command: str, options: Namespace) -> None:
    if command != 'fit' or options.ckpt_path is not None:
        raise ValueError("'seeds' is for fit without 'ckpt_path'; runs that were killed are "
                         "resumed, and finished ones kept")
    _check_seed(options.seed_everything + options.seeds - 1)


def _data_filling(options: Namespace) -> L.LightningDataModule | None:
    """Return data that fill options of the run, after their ``fill_options(options)`` has run."""
    kind = locate(options.data.class_path) if options.get('data') else None
    if not hasattr(kind, 'fill_options'):
        return None
    data = built(options.as_dict(), None, data=L.LightningDataModule).data
    data.fill_options(options)
    return data


def _is_in(folder: Path, checkpoint: Path) -> bool:
    """Return whether a checkpoint is one of the run in a folder."""
    return checkpoint.absolute().parent.resolve() == (folder / 'checkpoints').resolve()


def _trusted(arguments: list[str]) -> list[str]:
    """Return what ``--trust`` says, before anything else of a command line is read."""
    pairs = zip([None, *arguments], arguments)
    said = [value if before == '--trust' else value.removeprefix('--trust=')
            for before, value in pairs if before == '--trust' or value.startswith('--trust=')]
    return ','.join(said).split(',')


def _without(name: str, arguments: list[str]) -> list[str]:
    """Return a command line without one of its options."""
    pairs = zip([None, *arguments], arguments)
    return [value for before, value in pairs
            if before != name and value != name and not value.startswith(f'{name}=')]


def _checkpoint(command: str, path: str | None) -> str | None:
    """Return the checkpoint to resume or to test: the one that was asked for or None."""
    if path is None and command != 'fit':
        raise ValueError(f"'ckpt_path' must be given (got none): without one, {command} would "
                         f"look at a model that has learned nothing")
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
    """Run the command line ``args``, or the process's own.

    Raises:
        OSError: The disk is full, for example.
        SystemExit: Of status 130 at Ctrl-C, 143 at SIGTERM, 129 at SIGHUP.
        TypeError, ValueError: An argument is bad.
    """
    for name in ('lightning.pytorch', 'lightning.fabric'):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning calls torch in a way that torch deprecates.
    warnings.filterwarnings('ignore', message=r'.*isinstance\(treespec, LeafSpec\)')
    # What a logger gets is of whole epochs.
    warnings.filterwarnings('ignore', message='The number of training batches')
    # Studies and tests give their own arguments, and mean it.
    warnings.filterwarnings('ignore', message="LightningCLI's args parameter")
    bound_aliases()
    command, *options = (sys.argv[1:] if args is None else args) or ['--help']
    if command in ('-h', '--help'):
        print(__doc__)
        return
    if command not in COMMANDS:
        raise ValueError(f"the command must be one of {', '.join(COMMANDS)} (got {command!r})")
    if not any(option.startswith(WHAT_IS_TRAINED) for option in options):
        raise ValueError("'config' must say what is trained (got none): a file of yours or one of "
                         "experiments/configs, which graphattn train takes by its name, such as "
                         "--config digits/sbm; graphattn --help lists those")
    try:
        with ending_signals(), keeping_freed_memory(), trusting(_trusted(options)):
            # To train by a config is to run it; runs that are only tested may be a stranger's.
            with nullcontext() if command == 'fit' else importing_only(WATCHING):
                cli = TrainCLI(command, options)
            cli.run()
    except ArgumentError as error:
        raise ValueError(str(error)) from error
    except MisconfigurationException as error:
        raise ValueError(f"'trainer' cannot be set up: {error}") from error
    except (KeyError, RuntimeError) as error:
        if 'SLURM' not in str(error):
            raise
        raise ValueError(f"the variables of SLURM are not those of srun ({error}); start with srun "
                         f"and --ntasks-per-node, or without SLURM_NTASKS") from error
    except SystemExit as stop:
        # Lightning ends what is interrupted, which RunFolder has told, as if it had failed.
        if isinstance(stop.__context__, KeyboardInterrupt):
            stop.code = status_of(stop.__context__)
        raise


if __name__ == '__main__':
    run_or_exit(main)
