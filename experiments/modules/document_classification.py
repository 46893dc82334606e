"""Training of a classifier of documents."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from experiments.data.batch import TokenBatch
from experiments.modules.classification import Classification
from experiments.modules.densities import densities
from experiments.modules.means import Means
from experiments.runs.summary import without_nan
from graphattn import BipartiteGraph
from graphattn.graphs import PairMask
from graphattn.utils.files import write_whole

LAST, BEST = 'last epoch', 'best epoch, chosen on this part'
STAGES = ('val', 'test')


class DocumentClassification(Classification):
    """Training of a classifier of documents by cross-entropy.

    Accuracy, micro F1 and macro F1 are computed over all documents of a part, not averaged over
    batches or processes. With one label per document, micro F1 equals the accuracy. Macro F1 is the
    mean over the classes. Diffuser's Table S.3 does not say which "average F1" it reports.

    After the training, ``dev.json`` in the run's folder contains the development metrics of the
    last and the best epoch. The last epoch is tested, so that nothing is chosen on the reported
    part.

    Args:
        model (nn.Module): A :class:`graphattn.models.SequenceClassifier`, new or pre-trained
            (:func:`experiments.runs.pretrained.pretrained_classifier`, which requires data with the
            tokenizer of the pre-training).
        **kwargs: Arguments of :class:`experiments.modules.Classification`.
    """

    def __init__(self, model: nn.Module, **kwargs):
        super().__init__(model, **kwargs)
        self.metrics = nn.ModuleDict({stage: new_metrics(model.num_classes) for stage in STAGES})
        self.means = Means()
        self.dev: list[dict[str, float]] = []

    def log_pass(self, stage: str, batch: TokenBatch, loss: Tensor, logits: Tensor,
                 graphs: list[BipartiteGraph | PairMask]) -> None:
        if stage == 'train':
            super().log_pass(stage, batch, loss, logits, graphs)
            return
        self.metrics[stage].update(logits.argmax(dim=-1), batch.label)
        num_documents = batch.label.numel()
        values = {f'density/{place}': value
                  for place, value in densities(graphs, num_documents).items()}
        for name, value in {'loss': loss, **values}.items():
            self.means.add(name, value, num_documents)

    def on_validation_epoch_end(self) -> None:
        values = self._log_metrics('val')
        if self.trainer.state.fn == 'fit' and not self.trainer.sanity_checking:
            self.dev.append({'epoch': self.current_epoch + 1, 'step': self.global_step, **values})

    def on_test_epoch_end(self) -> None:
        self._log_metrics('test')

    def on_fit_end(self) -> None:
        if not self.trainer.is_global_zero or not self.dev:
            return
        best = max(self.dev, key=lambda row: row['macro_f1'])
        report = {'classes': self.model.num_classes, LAST: without_nan(self.dev[-1]),
                  BEST: without_nan(best)}
        text = json.dumps(report, indent=2, allow_nan=False) + '\n'
        write_whole(Path(self.trainer.default_root_dir) / 'dev.json',
                    lambda path: path.write_text(text))

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint['dev'] = self.dev

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        super().on_load_checkpoint(checkpoint)
        self.dev = checkpoint['dev']

    def _log_metrics(self, stage: str) -> dict[str, float]:
        """Log the metrics of a stage over all processes, and reset the metrics. Return a dict of
        their values."""
        values = self.means.compute()
        values |= {name: float(value) for name, value in self.metrics[stage].compute().items()}
        self.metrics[stage].reset()
        self.log_dict({f'{stage}/{name}': value for name, value in values.items()})
        return values


def new_metrics(num_classes: int) -> MetricCollection:
    """Return the metrics of a classifier with ``num_classes`` classes: accuracy, micro F1 and macro
    F1. Macro F1 is the mean over classes that occur in labels or predictions."""
    return MetricCollection({
        'accuracy': MulticlassAccuracy(num_classes, average='micro'),
        'micro_f1': MulticlassF1Score(num_classes, average='micro'),
        'macro_f1': MulticlassF1Score(num_classes, average='macro')})
