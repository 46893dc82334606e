"""Training of a model for a few steps after its attention was replaced by attention along
graphs."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import trange

from experiments.surgery.losses import Loss, logits_of, trimmed
from experiments.surgery.tokens import PADDING
from graphattn.utils.files import write_whole
from graphattn.utils.reading import load_tensors
from graphattn.utils.schema import check_schema

SAVE_EVERY = 50  # steps


class Adaptation(NamedTuple):
    """Settings of :func:`adapt`, a training by AdamW."""

    steps: int = 300
    lr: float = 2e-4  # the peak; it rises in the first tenth of the steps, then falls linearly to 0
    batch_size: int = 4
    distill: float = 0.  # weight of the divergence from the dense model; the own loss has the rest
    seed: int = 0  # of the batches and of dropout


def adapt(model: nn.Module, tokens: Tensor, loss: Loss, settings: Adaptation, *,
          teacher: nn.Module | None = None, state: Path | None = None) -> list[float]:
    """Train the parameters of a model that require a gradient, from the file ``state`` on, with the
    same results as without an interruption."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=0.)
    losses: list[float] = []
    if state is not None and state.is_file():
        try:
            saved = load_tensors(state)
            check_schema(saved, {'model': dict, 'optimizer': dict, 'losses': [float]}, str(state))
            model.load_state_dict(saved['model'])
            optimizer.load_state_dict(saved['optimizer'])
        except Exception as error:  # damaged files raise many types of errors
            raise ValueError(f'{state} cannot be read ({error}); delete this file') from error
        losses = saved['losses']
    model.train()
    with torch.random.fork_rng(devices=[]):
        for step in trange(len(losses), settings.steps, initial=len(losses), total=settings.steps,
                           desc='adapting', unit='step', disable=None):
            torch.manual_seed(settings.seed * 1_000_003 + step)
            for group in optimizer.param_groups:
                group['lr'] = settings.lr * _schedule(step, settings.steps)
            batch = trimmed(tokens[_batch(len(tokens), settings, step)])
            value = _objective(model, batch, loss, settings, teacher, step)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(parameters, 1.)
            optimizer.step()
            losses.append(float(value.detach()))
            if not np.isfinite(losses[-1]):
                raise ValueError(f"'lr' must let the loss stay finite (got {settings.lr}, and "
                                 f"{losses[-1]} in step {step}); use a smaller one")
            if state is not None and ((step + 1) % SAVE_EVERY == 0 or step + 1 == settings.steps):
                content = {'model': model.state_dict(), 'optimizer': optimizer.state_dict(),
                           'losses': losses}
                write_whole(state, lambda path, content=content: torch.save(content, path))
    model.eval()
    return losses


def _objective(model: nn.Module, batch: Tensor, loss: Loss, settings: Adaptation,
               teacher: nn.Module | None, step: int) -> Tensor:
    own = (1 - settings.distill) * loss(model, batch, step) if settings.distill < 1 else 0.
    if settings.distill == 0:
        return own
    is_token = batch != PADDING
    with torch.no_grad():
        target = logits_of(teacher, batch)[is_token].float().log_softmax(-1)
    mine = logits_of(model, batch)[is_token].float().log_softmax(-1)
    divergence = F.kl_div(mine, target, log_target=True, reduction='batchmean')
    return own + settings.distill * divergence


def _schedule(step: int, steps: int) -> float:
    warmup = max(1, steps // 10)
    return min((step + 1) / warmup, max(0., (steps - step) / max(1, steps - warmup)))


def _batch(count: int, settings: Adaptation, step: int) -> Tensor:
    """Return the indices of the sequences in a step, which depend only on the seed and the step."""
    generator = np.random.default_rng((settings.seed, step))
    return torch.from_numpy(generator.choice(count, min(settings.batch_size, count),
                                             replace=False))


def check_lora(rank: int) -> None:
    """Raise an error if ``rank`` is not positive, or if the package peft is missing."""
    if rank < 1:
        raise ValueError(f"'lora' must be positive (got {rank})")
    if find_spec('peft') is None:
        raise ValueError(f"'lora' needs the package peft (got {rank}): pip install peft")


def with_adapters(model: nn.Module, rank: int, seed: int = 0) -> Any:
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank,
                                                target_modules='all-linear'))
