"""Training of a classifier of documents."""

from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from experiments.data.batch import TokenBatch
from experiments.modules.classification import Classification
from experiments.modules.densities import Graphs
from experiments.modules.measures import DevReport, Means

STAGES = ('val', 'test')


class DocumentClassification(DevReport, Classification):
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
        self.means, self.dev = Means(), []

    def log_pass(self, stage: str, batch: TokenBatch, loss: Tensor, logits: Tensor,
                 graphs: Graphs) -> None:
        if stage == 'train':
            super().log_pass(stage, batch, loss, logits, graphs)
            return
        self.metrics[stage].update(logits.argmax(dim=-1), batch.label)
        self.means.add('loss', loss, batch.label.numel())
        self.means.add_densities(graphs, batch.label.numel())

    def compute(self, stage: str) -> dict[str, Tensor]:
        values = self.metrics[stage].compute()
        self.metrics[stage].reset()
        return values

    def on_fit_end(self) -> None:
        self.write_dev({'classes': self.model.num_classes}, lambda row: row['macro_f1'])


def new_metrics(num_classes: int) -> MetricCollection:
    """Return the metrics of a classifier with ``num_classes`` classes."""
    return MetricCollection({
        'accuracy': MulticlassAccuracy(num_classes, average='micro'),
        'micro_f1': MulticlassF1Score(num_classes, average='micro'),
        'macro_f1': MulticlassF1Score(num_classes, average='macro')})
