"""Looks into the processes of a test run."""

import hashlib
import math
import os
import resource
import signal
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback

SENT = 'GRAPHATTN_TEST_SIGNAL_SENT'


class SaveParameters(Callback):
    """Saves what each process ends with, and how many edges it sampled on the way."""

    def on_fit_start(self, trainer, pl_module):
        self.num_edges = []
        for layer in pl_module.model.encoder.layers:
            layer.attention.source.register_forward_hook(
                lambda source, inputs, graph: self.num_edges.append(graph.num_edges))

    def on_fit_end(self, trainer, pl_module):
        torch.save({'parameters': pl_module.state_dict(), 'num_edges': self.num_edges},
                   Path(trainer.default_root_dir) / f'rank{trainer.global_rank}.pt')


class AfterSteps(Callback):
    """Does something after so many steps."""

    def __init__(self, steps: int):
        self.steps = steps


class Fail(AfterSteps):
    """Ends a training with an error, after so many steps."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.steps:
            raise RuntimeError('as told')


class Signal(AfterSteps):
    """Sends the process a signal in a hook, after so many steps; if SENT is set it has been."""

    def __init__(self, steps: int, number: int, hook: str):
        super().__init__(steps)
        self.number = number
        setattr(self, hook, self._send)

    def _send(self, trainer, *_):
        if trainer.global_step >= self.steps and SENT not in os.environ:
            signal.raise_signal(self.number)


class LoseGradient(AfterSteps):
    """Makes a gradient NaN, while the loss of that step is a number."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if trainer.global_step == self.steps:
            next(pl_module.parameters()).grad.fill_(math.nan)


class LoseNumbers(Callback):
    """Makes the last parameters NaN when they are tested, and no training has seen them."""

    def on_test_start(self, trainer, pl_module):
        for parameter in pl_module.parameters():
            parameter.data.fill_(math.nan)


class FullDisk(AfterSteps):
    """Lets the first process write no long file any more, after so many steps."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.steps and trainer.is_global_zero:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


class LoseEdges(Callback):
    """Keeps the first head of the first layer from sampling any edge but to explore."""

    @torch.no_grad()
    def on_validation_start(self, trainer, pl_module):
        source = pl_module.model.encoder.layers[0].attention.source
        source.centroid[0], source.weight2[0], source.bias2[0] = 1., 0., -100.


class Kill(AfterSteps):
    """Kills each process after so many steps."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.steps:
            os.kill(os.getpid(), signal.SIGKILL)


class KillInValidation(AfterSteps):
    """Kills the process in the evaluation after so many steps."""

    def on_validation_batch_start(self, trainer, *_):
        if trainer.global_step == self.steps:
            os.kill(os.getpid(), signal.SIGKILL)


class Seeds(Callback):
    """Writes the seed of each training batch."""

    def on_train_batch_start(self, trainer, *_):
        with (Path(trainer.default_root_dir) / 'seeds').open('a') as file:
            file.write(f'{torch.initial_seed()}\n')


class RecordBatches(Callback):
    """Appends the step and a digest of each training batch to a file.

    Args:
        path (str): The file.
        kill_at (int): The step at which the process kills itself.
    """

    def __init__(self, path: str, kill_at: int = -1):
        self.path, self.kill_at = path, kill_at

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        content = b''.join(part.numpy().tobytes() for part in batch)
        with open(f'{self.path}.rank{trainer.global_rank}', 'a') as file:
            file.write(f'{trainer.global_step} {hashlib.sha256(content).hexdigest()}\n')
