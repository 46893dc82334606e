"""The base class of all trainings: optimiser, learned masks, and checks of checkpoints."""

import math
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Literal, get_args

import lightning as L
import torch
from torch import Tensor, nn

from experiments.data.batch import TokenBatch, check_batch
from experiments.modules.densities import Graphs, densities
from experiments.runs.pretrained import load_encoder, tokenizer_of
from graphattn.extension import cache_host_copies
from graphattn.graphs import PairMask
from graphattn.patterns import save_masks
from graphattn.samplers import density_penalty
from graphattn.sources import BlockModelSource, LearnedMaskSource
from graphattn.sources.mask_graph import MaskGraph

FreezeHow = Literal['threshold', 'sample', 'top-k']
Decay = Literal['cosine', 'linear', 'rsqrt', 'one-cycle']


class Training(L.LightningModule):
    r"""Base class of all trainings: AdamW with a warm-up and a decay of the learning rate, and
    penalties on learned masks and on the density of sampled graphs.

    .. math:: \mathcal{L} + \lambda \lVert M \rVert_1 + \lambda_s \mathcal{L}_s

    The first penalty is SparseBERT's Eq. 7. The norm is the sum over heads and pairs, and a mask
    that several layers share counts once. The second, of SBM-Transformer, Sec. 5.2, is the mean
    density of the graphs that heads sample. Biases, norms and mask logits have no weight decay. A
    training with learned masks saves the frozen masks in the folder of its run as ``masks.npz``. If
    layers do not share a source, there is one file per source.

    Args:
        model (nn.Module): The model to train.
        lr (float): Peak learning rate.
        weight_decay (float): Decoupled weight decay.
        warmup (float): Fraction of the steps in which the learning rate rises.
        decay (str): The decay of the learning rate: ``'cosine'``, ``'linear'`` as in BERT, or
            ``'rsqrt'``, one over the square root of the step (Vaswani et al., 2017).
            ``'one-cycle'`` is torch's OneCycleLR with straight lines, the protocol of Nyströmformer
            and SBM-Transformer. In it, the rate rises from a 25th of ``lr`` and falls to a
            250,000th, while beta 1 falls from 0.95 to 0.85 and rises again.
        betas (tuple of float): AdamW's betas.
        eps (float): AdamW's epsilon.
        mask_weight (float): The factor :math:`\lambda` of the penalty; requires a
            :class:`LearnedMaskSource`.
        mask_lr (float, optional): Peak learning rate of the mask logits; if omitted, ``lr``.
        freeze (str): The way in which masks are frozen, see :meth:`LearnedMaskSource.freeze`.
        sparsity (float, optional): Sparsity of the masks, for ``freeze='top-k'``.
        density_weight (float): The factor :math:`\lambda_s` of the density; requires a
            :class:`BlockModelSource`.
    """

    model_kind: type[nn.Module] = nn.Module  # the class that the model must have
    batch_kind = TokenBatch  # the class of the batches that the data module makes
    # the tokenizer of the weights that the training starts from
    pretrained_tokenizer: Path | None = None

    def __init__(self, model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.,
                 warmup: float = 0.1, decay: Decay = 'cosine',
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 mask_weight: float = 0., mask_lr: float | None = None,
                 freeze: FreezeHow = 'threshold', sparsity: float | None = None,
                 density_weight: float = 0.):
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"'model' must be a torch.nn.Module (got {type(model).__name__})")
        if not isinstance(model, self.model_kind):
            raise TypeError(f"'model' must be a {self.model_kind.__name__} (got "
                            f"{type(model).__name__})")
        check_numbers(lr=lr, weight_decay=weight_decay, warmup=warmup, mask_weight=mask_weight,
                      mask_lr=lr if mask_lr is None else mask_lr, eps=eps,
                      density_weight=density_weight)
        for beta in betas:
            check_numbers(betas=beta)
            if not 0. <= beta < 1.:
                raise ValueError(f"'betas' must be two numbers in [0, 1), such as [0.9, 0.999] "
                                 f"(got {betas})")
        for name, rate in (('lr', lr), ('mask_lr', mask_lr), ('eps', eps)):
            if rate is not None and not 0. < rate < math.inf:
                raise ValueError(f"'{name}' must be positive (got {rate})")
        for name, weight in (('weight_decay', weight_decay), ('mask_weight', mask_weight),
                             ('density_weight', density_weight)):
            if not 0. <= weight < math.inf:
                raise ValueError(f"'{name}' must be at least 0 (got {weight})")
        if not 0. <= warmup <= 1.:
            raise ValueError(f"'warmup' must be in [0, 1], a fraction of all steps (got {warmup})")
        if decay not in get_args(Decay):
            raise ValueError(f"'decay' must be one of {', '.join(get_args(Decay))} (got "
                             f"{decay!r})")
        self.mask_sources = [module for module in model.modules()
                             if isinstance(module, LearnedMaskSource)]
        if not self.mask_sources and (mask_weight > 0. or mask_lr is not None):
            name = 'mask_weight' if mask_weight > 0. else 'mask_lr'
            raise ValueError(f"'{name}' requires a model whose source is a LearnedMaskSource; omit "
                             f"'{name}' for other models")
        if density_weight and not any(isinstance(module, BlockModelSource)
                                      for module in model.modules()):
            raise ValueError("'density_weight' requires a model whose source is a "
                             "BlockModelSource; omit 'density_weight' for other models")
        for source in self.mask_sources:
            # an invalid option raises here rather than after the training
            source.freeze(freeze, sparsity)
        self.model = model
        model.register_forward_hook(_check_output)
        self.lr, self.weight_decay, self.warmup, self.decay = lr, weight_decay, warmup, decay
        self.betas, self.eps = betas, eps
        self.mask_weight, self.mask_lr = mask_weight, mask_lr
        self.density_weight = density_weight
        self.freeze_masks_by, self.sparsity = freeze, sparsity

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        self._check_first(batch, batch_idx)

    def on_validation_batch_start(self, batch: object, batch_idx: int, *_: int) -> None:
        self._check_first(batch, batch_idx)

    on_test_batch_start = on_validation_batch_start

    def _check_first(self, batch: object, batch_idx: int) -> None:
        if batch_idx == 0:
            check_batch(batch, self.batch_kind)

    def evaluate(self, batch: object, stage: str) -> object:
        """Log the metrics of a batch, and return its loss and the graph of each layer."""
        raise NotImplementedError

    @cache_host_copies
    def training_step(self, batch: object, batch_idx: int) -> Tensor:
        loss, graphs = self.evaluate(batch, 'train')
        return self.penalised(loss, graphs)

    def validation_step(self, batch: object, batch_idx: int) -> None:
        self.evaluate(batch, 'val')

    def test_step(self, batch: object, batch_idx: int) -> None:
        self.evaluate(batch, 'test')

    def start_from(self, pretrained: str | None) -> None:
        if pretrained is not None:
            load_encoder(self.model.encoder, pretrained)
            self.pretrained_tokenizer = tokenizer_of(pretrained)

    def targets(self, batch: object, stage: str) -> Tensor | None:
        """Return the classes or values of a batch, if any, for a baseline of a constant."""
        return None

    def log_means(self, values: dict[str, Tensor], weight: int | Tensor, *,
                  prog_bar: bool = False) -> None:
        """Log means over ``weight`` examples, for averages over the epoch and all processes."""
        # Lightning divides by the mean of the processes' weights. If weights are integers, it
        # rounds this mean.
        exact = torch.as_tensor(weight, dtype=torch.float64)
        self.log_dict(values, prog_bar=prog_bar, on_step=False, on_epoch=True, sync_dist=True,
                      batch_size=exact)

    def log_densities(self, stage: str, graphs: Graphs, num_sequences: int) -> None:
        self.log_means({f'{stage}/density/{place}': value for place, value in
                        densities(graphs, num_sequences).items()}, num_sequences)

    def penalised(self, loss: Tensor, graphs: Graphs) -> Tensor:
        """Add the penalties on the graphs and masks of a forward pass to its loss."""
        if self.density_weight > 0.:
            penalty = torch.stack([density_penalty(graph) for graph in graphs]).mean()
            loss = loss + self.density_weight * penalty
        if self.mask_weight > 0.:
            masks = {id(graph): graph for graph in graphs
                     if isinstance(graph, PairMask | MaskGraph)}
            loss = loss + self.mask_weight * sum(mask.norm() for mask in masks.values())
        return loss

    def parameter_groups(self) -> list[dict]:
        """Return the groups of parameters for AdamW, which may set ``lr`` and ``weight_decay``."""
        masks = [source.logit for source in self.mask_sources]
        others = [p for p in self.parameters() if not any(p is mask for mask in masks)]
        groups = [
            {'params': [p for p in others if p.dim() > 1]},
            {'params': [p for p in others if p.dim() <= 1], 'weight_decay': 0.},
            {'params': masks, 'weight_decay': 0., 'lr': self.mask_lr or self.lr}]
        return [group for group in groups if group['params']]

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameter_groups(), lr=self.lr, betas=self.betas,
                                      eps=self.eps, weight_decay=self.weight_decay)
        total = self.trainer.estimated_stepping_batches
        if total == math.inf:
            raise ValueError("'trainer.max_epochs' or 'trainer.max_steps' must be given, because "
                             "the learning rate decays over all steps (got neither); pass "
                             "--trainer.max_epochs 10, for instance")
        total = max(1, total)
        if self.decay == 'one-cycle':
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, [group['lr'] for group in optimizer.param_groups], total_steps=total,
                pct_start=self.warmup, anneal_strategy='linear')
        else:
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, partial(share_of_peak, total=total, warmup=self.warmup,
                                   decay=self.decay))
        return {'optimizer': optimizer,
                'lr_scheduler': {'scheduler': schedule, 'interval': 'step'}}

    def on_train_end(self) -> None:
        self._save_masks()

    def on_test_start(self) -> None:
        self._save_masks()  # the masks of the tested weights, which need not be the last weights

    def _save_masks(self) -> None:
        if not self.trainer.is_global_zero:
            return
        for number, source in enumerate(self.mask_sources):
            name = 'masks' if len(self.mask_sources) == 1 else f'masks{number}'
            generator = None
            if self.freeze_masks_by == 'sample':
                generator = torch.Generator(source.logit.device).manual_seed(number)
            save_masks(Path(self.trainer.default_root_dir) / f'{name}.npz',
                       source.freeze(self.freeze_masks_by, self.sparsity, generator))

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        """Raise an error before anything changes if a checkpoint is from another model."""
        mine = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        saved = {name: tuple(value.shape) for name, value in checkpoint['state_dict'].items()}
        if mine != saved:
            name = min(name for name in mine.keys() | saved.keys()
                       if mine.get(name) != saved.get(name))
            raise ValueError(f"'ckpt_path' must be a checkpoint of this model (got "
                             f"{saved.get(name)} for {name!r}, which is {mine.get(name)} here); "
                             f"use the config.yaml of the run that wrote the checkpoint")


def _check_output(model: nn.Module, given: tuple, output: Tensor | tuple) -> None:
    # Metrics and predictions of NaN look like numbers, such as an accuracy. While a model trains,
    # its losses are checked.
    outputs = output if isinstance(output, tuple) else (output,)
    if not model.training and any(isinstance(part, Tensor) and part.isnan().any()
                                  for part in outputs):
        raise ValueError('the outputs of the model must be numbers (got NaN); its weights are too '
                         'large for the precision, or its inputs are not finite')


def share_of_peak(step: int, total: int, warmup: float, decay: Decay) -> float:
    """Return the learning rate in a training step as a fraction of its peak."""
    rise = max(1, round(warmup * total))
    if step < rise:
        return (step + 1) / rise
    if decay == 'rsqrt':
        return math.sqrt(rise / step)
    left = 1 - (step - rise) / max(1, total - rise)
    return left if decay == 'linear' else (1 - math.cos(math.pi * left)) / 2


def check_numbers(**numbers: float) -> None:
    """Raise an error unless each keyword argument is a number. The error names the argument."""
    for name, number in numbers.items():
        if not isinstance(number, Real) or isinstance(number, bool):
            raise TypeError(f"'{name}' must be a number (got {type(number).__name__})")
