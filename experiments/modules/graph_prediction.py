"""Training of a model that predicts classes, labels or values, of graphs or of their nodes."""

import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MultilabelAUROC,
    MultilabelAveragePrecision,
)
from torchmetrics.regression import MeanAbsoluteError

from experiments.data.batch import NO_LABEL
from experiments.modules.base import Training
from experiments.modules.densities import Graphs
from experiments.modules.measures import Means

Target = Literal['classes', 'labels', 'values']
STAGES = 'train', 'val', 'test'


class GraphPrediction(Training):
    r"""Training of a model on PyG batches.

    ========== ==================================== ========================================
    target     loss                                 metrics of a whole part
    ========== ==================================== ========================================
    classes    cross-entropy                        accuracy, balanced accuracy, macro F1
    labels     binary cross-entropy of each label   average precision, area under the ROC
    values     absolute error                       mean absolute error (MAE)
    ========== ==================================== ========================================

    Balanced accuracy is the mean over classes of the share of examples that are right. It is the
    accuracy that PATTERN and CLUSTER report. NaN as a label or value, and -100 as a class, mark a
    missing target, which does not count. Means over labels leave out labels that have examples
    of one class only, as in OGB.

    Targets are ``y`` of a batch. In graphs with ``train_mask``, ``val_mask`` and ``test_mask``,
    only the nodes in the mask of the stage count. In batches of a ``NeighborLoader``, only the
    seeds count.

    Args:
        model (nn.Module): The model. ``model(data, return_graphs=True)`` must return the output of
            each graph or node, and the graphs of attention.
        target (str): ``'classes'``, ``'labels'`` or ``'values'``.
        balanced (bool): Whether to weight each class by the share of the other classes in a batch,
            as for PATTERN and CLUSTER.
        **kwargs: Arguments of :class:`experiments.modules.Training`.
    """

    def __init__(self, model: nn.Module, target: Target = 'classes', balanced: bool = False,
                 **kwargs):
        super().__init__(model, **kwargs)
        if target not in ('classes', 'labels', 'values'):
            raise ValueError(f"'target' must be 'classes', 'labels' or 'values' (got {target!r})")
        if balanced and target != 'classes':
            raise ValueError(f"'balanced' requires target='classes' (got target={target!r}); omit "
                             f"'balanced'")
        self.target, self.balanced = target, balanced
        self.metrics = nn.ModuleDict({f'{stage}_': _metrics(target, model.out_channels)
                                      for stage in STAGES})
        self.means = {stage: Means() for stage in STAGES}

    def _check_first(self, batch: object, batch_idx: int) -> None:
        if not isinstance(batch, Data):
            raise TypeError(f"a batch must be a PyG Data (got {type(batch).__name__})")
        if not isinstance(batch.y, Tensor):
            raise ValueError(f"a batch must have targets as 'y' (got {batch})")

    def predict_step(self, batch: Data, batch_idx: int = 0) -> Tensor:
        """Return the predictions for a batch: the probability of each class or label, or the
        values."""
        out = self.model(batch)
        if self.target == 'values':
            return out
        return out.softmax(dim=-1) if self.target == 'classes' else out.sigmoid()

    def targets(self, batch: Data, stage: str) -> Tensor | None:
        if self.target == 'labels':
            return None
        y = batch.y.flatten() if self.target == 'classes' else batch.y.reshape(
            -1, self.model.out_channels)
        return _in_stage(batch, stage, y)

    def evaluate(self, batch: Data, stage: str) -> tuple[Tensor, Graphs]:
        out, graphs = self.model(batch, return_graphs=True)
        out, y = _counted(batch, stage, out, self.target)
        loss = self.loss(out, y)
        num_graphs = 1 if batch.batch is None else batch.num_graphs
        self.means[stage].add('loss', loss, int(_is_given(y).sum()))
        self.means[stage].add_densities(graphs, num_graphs)
        self.metrics[f'{stage}_'].update(*_or_missing(out.detach(), y))
        return loss, graphs

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of outputs over the targets that are not missing, or 0."""
        is_given = _is_given(y)
        out, y = out[is_given], y[is_given]
        if not len(y):
            return 0. * out.sum()
        if self.target == 'classes':
            weight = _class_weights(y, out.size(1)).to(out.dtype) if self.balanced else None
            if weight is not None and not weight.any():  # all targets are of one class
                return 0. * out.sum()
            return F.cross_entropy(out, y, weight)
        if self.target == 'labels':
            return F.binary_cross_entropy_with_logits(out, y)
        return F.l1_loss(out, y)

    def on_train_epoch_end(self) -> None:
        self._log('train')

    def on_validation_epoch_end(self) -> None:
        self._log('val')

    def on_test_epoch_end(self) -> None:
        self._log('test')

    def _log(self, stage: str) -> None:
        metrics = self.metrics[f'{stage}_']
        values = self.means[stage].compute()
        if values:  # a resumed epoch may have no batches left
            values |= {name: float(value) for name, value in metrics.compute().items()}
        metrics.reset()
        shown = 'loss', 'accuracy', 'average_precision', 'mae'
        for name, value in values.items():
            self.log(f'{stage}/{name}', value, prog_bar=name in shown)


def _counted(batch: Data, stage: str, out: Tensor, target: Target) -> tuple[Tensor, Tensor]:
    """Return the outputs and the targets of the nodes or graphs that count in a stage."""
    y = batch.y
    is_class = target == 'classes'
    if y.numel() != (len(out) if is_class else out.numel()) or is_class and y.is_floating_point():
        shape = len(out) if is_class else f'{len(out)}, {out.size(1)}'
        raise ValueError(f"'y' of a batch must contain {target} of shape [{shape}], the shape of "
                         f"the model's output (got {y.dtype} of shape {tuple(y.shape)})")
    y = y.flatten().long() if is_class else y.reshape(out.shape).to(out.dtype)
    return _in_stage(batch, stage, out), _in_stage(batch, stage, y)


def _in_stage(batch: Data, stage: str, rows: Tensor) -> Tensor:
    # in a batch of a NeighborLoader, the seeds come first
    if getattr(batch, 'input_id', None) is not None:
        return rows[:batch.batch_size]
    mask = getattr(batch, f'{stage}_mask', None)
    return rows[mask] if isinstance(mask, Tensor) else rows


def _is_given(y: Tensor) -> Tensor:
    return ~y.isnan() if y.is_floating_point() else y != NO_LABEL


def _or_missing(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and targets, or one that is missing, for the metrics of each process."""
    if len(y):
        return out, y
    missing = torch.nan if y.is_floating_point() else NO_LABEL
    return out.new_zeros(1, out.size(1)), y.new_full((1, *y.shape[1:]), missing)


def _class_weights(y: Tensor, num_classes: int) -> Tensor:
    """Return the weight of each class in the loss, ``[num_classes]``: 1 minus the share of the
    class among the targets, or 0 for a class that does not occur (Dwivedi et al., 2020)."""
    count = torch.bincount(y, minlength=num_classes)
    return (len(y) - count) / len(y) * (count > 0)


# Metrics #############################################################################


def _metrics(target: Target, out_channels: int) -> MetricCollection:
    if target == 'classes':
        options = dict(ignore_index=NO_LABEL, validate_args=False)
        return MetricCollection({
            'accuracy': MulticlassAccuracy(out_channels, average='micro', **options),
            'balanced_accuracy': _BalancedAccuracy(out_channels, average='macro', **options),
            'macro_f1': MulticlassF1Score(out_channels, average='macro', **options)},
            compute_groups=False)
    if target == 'values':
        return MetricCollection({'mae': _MeanAbsoluteError()}, compute_groups=False)
    return MetricCollection({
        'average_precision': _OverLabels(MultilabelAveragePrecision, out_channels),
        'roc_auc': _OverLabels(MultilabelAUROC, out_channels)}, compute_groups=False)


class _BalancedAccuracy(MulticlassAccuracy):
    """The share of right examples, averaged over the classes among the targets."""

    def compute(self) -> Tensor:
        num_examples = self.tp + self.fn
        return (self.tp / num_examples)[num_examples > 0].mean()


class _MeanAbsoluteError(MeanAbsoluteError):
    """Metric: the mean absolute error over the targets that are not NaN."""

    def update(self, out: Tensor, y: Tensor) -> None:
        super().update(out[~y.isnan()], y[~y.isnan()])


class _OverLabels(Metric):
    """The mean of a metric over labels whose examples differ in class; NaN is a missing label."""

    def __init__(self, kind: type[Metric], num_labels: int):
        super().__init__()
        self.metric = kind(num_labels, average='none', ignore_index=NO_LABEL, validate_args=False)
        self.add_state('seen', torch.zeros(2, num_labels, dtype=torch.long), dist_reduce_fx='sum')

    def update(self, out: Tensor, y: Tensor) -> None:
        target = torch.where(y.isnan(), NO_LABEL, y).long()
        # Both metrics depend only on the order of outputs. Sigmoids of large outputs would be ties.
        order = F.softsign(out.double()) / 2 + .5
        self.metric.update(order, target)
        self.seen += torch.stack([(target == value).sum(dim=0) for value in (0, 1)])

    def compute(self) -> Tensor:
        has_both = (self.seen > 0).all(dim=0)
        with warnings.catch_warnings():  # the metric warns about labels that are left out below
            warnings.filterwarnings('ignore', message='No (positive|negative) samples')
            return self.metric.compute()[has_both].mean()

    def reset(self) -> None:
        super().reset()
        self.metric.reset()
