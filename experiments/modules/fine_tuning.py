"""Fine-tuning of a pre-trained model on a GLUE task."""

import warnings
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

from experiments.data.batch import TextBatch
from experiments.data.text.glue_files import TASKS
from experiments.data.text.tokenizer import check_vocabulary
from experiments.modules.densities import Graphs
from experiments.modules.measures import DevReport, Means
from experiments.modules.text_inputs import segments_for
from experiments.runs.pretrained import pretrained_classifier, tokenizer_of
from graphattn.extension import cache_host_copies
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource


class FineTuning(DevReport):
    """Fine-tuning of a pre-trained model on a GLUE task by BERT's recipe. The loss is the
    cross-entropy of classes, or the mean squared error of a score.

    The metrics of each development set are logged after every epoch. After the training,
    ``dev.json`` in the run's folder contains the metrics of the last and the best epoch. The best
    epoch is chosen on the reported sets, as is usual for GLUE, so its metrics are optimistic.

    Args:
        pretrained (str): A checkpoint of masked language modelling, in the folder of its run.
        task (str): The task of the data, one of :data:`experiments.data.text.glue_files.TASKS`.
        source (GraphSource, Pattern or str, optional): The source of the edges, see
            :func:`experiments.runs.pretrained.pretrained_classifier`; if omitted, the source of the
            pre-training, whose learned masks are frozen.
        freeze_how (str, optional): The way in which masks are frozen: ``'threshold'`` (the
            default), ``'sample'`` or ``'top-k'``.
        sparsity (float, optional): Fraction of the pairs that ``'top-k'`` drops.
        pooling (str): ``'pooler'`` as in BERT, or ``'mean'`` as in SBM-Transformer (Table 7).
        dropout (float): Dropout probability before the classification head.
        lr, weight_decay, warmup, decay: As in :class:`experiments.modules.Training`.
    """

    batch_kind = TextBatch

    def __init__(
        self,
        pretrained: str,
        task: str,
        source: GraphSource | Pattern | str | None = None,
        freeze_how: Literal['threshold', 'sample', 'top-k'] | None = None,
        sparsity: float | None = None,
        pooling: Literal['pooler', 'mean'] = 'pooler',
        dropout: float = 0.1,
        lr: float = 2.4e-5,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        decay: Literal['cosine', 'linear'] = 'linear',
    ):
        if task not in TASKS:
            raise ValueError(f"'task' must be one of {', '.join(TASKS)} (got {task!r})")
        model = pretrained_classifier(
            pretrained, len(TASKS[task].classes) or 1, source=source, freeze_how=freeze_how,
            sparsity=sparsity, pooling=pooling, dropout=dropout)
        super().__init__(model, lr, weight_decay, warmup, decay)
        self.task_name, self.task = task, TASKS[task]
        self.tokenizer_path = self.pretrained_tokenizer = tokenizer_of(pretrained)
        self.metrics = nn.ModuleDict({name: new_metrics(len(self.task.classes))
                                      for name in self.task.dev})
        self.means, self.dev = Means(), []

    def prepare_data(self) -> None:
        """Raise an error if the data do not fit the model, before the data are read and the folder
        of the run is made."""
        data, encoder = self.trainer.datamodule, self.model.encoder
        name = getattr(data, 'task', type(data).__name__)
        if name != self.task_name:
            raise ValueError(f"'task' must be the same for model and data (got {self.task_name!r} "
                             f"for the model and {name!r} for the data)")
        longest = encoder.position_embedding.num_embeddings
        if data.max_length > longest:
            raise ValueError(f"'max_length' must be at most {longest}, the number of positions "
                             f"of the pre-trained model (got {data.max_length})")
        num_tokens = encoder.token_embedding.num_embeddings
        if data.tokenizer.get_vocab_size() > num_tokens:
            raise ValueError(f"'tokenizer' must be the tokenizer of the pre-trained model, with "
                             f"{num_tokens} tokens (got a tokenizer with "
                             f"{data.tokenizer.get_vocab_size()} tokens)")
        check_vocabulary(data.tokenizer, num_tokens, self.pretrained_tokenizer)

    @cache_host_copies
    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        loss, _, _ = self._loss(batch)
        self.log_means({'train/loss': loss}, batch.label.numel(), prog_bar=True)
        return loss

    def validation_step(self, batch: TextBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, self.task.dev[dataloader_idx])

    test_step = validation_step  # on the same sets

    def targets(self, batch: TextBatch, stage: str) -> Tensor | None:
        return batch.label if self.task.classes else None  # a constant has no correlation

    def on_fit_end(self) -> None:
        metrics = [f'{self.task.metric}/{name}' for name in self.task.dev]
        best = self.write_dev({'task': self.task_name, 'reported': metrics},
                              lambda row: sum(row[metric] for metric in metrics))
        for metric in metrics if best else ():
            print(f'\n{self.task_name} {metric}: {self.dev[-1][metric]:.4f} after the last epoch, '
                  f'{best[metric]:.4f} after the best epoch, {best["epoch"]}')

    def predict_step(self, batch: TextBatch, batch_idx: int = 0) -> Tensor:
        """Return the probability of each class, or the score, of each example of a batch."""
        output, _ = self._output(batch)
        return output.softmax(dim=-1) if self.task.classes else output

    def _output(self, batch: TextBatch) -> tuple[Tensor, Graphs]:
        return self.model(batch.tokens, batch.ptr, return_graphs=True,
                          segments=segments_for(self.model.encoder, batch.segments))

    def _loss(self, batch: TextBatch) -> tuple[Tensor, Tensor, Graphs]:
        output, graphs = self._output(batch)
        if self.task.classes:
            return F.cross_entropy(output, batch.label), output, graphs
        score = output.squeeze(-1)
        return F.mse_loss(score, batch.label), score, graphs

    def _evaluate(self, batch: TextBatch, name: str) -> None:
        loss, output, graphs = self._loss(batch)
        prediction = output.argmax(dim=-1) if self.task.classes else output.float()
        self.metrics[name].update(prediction, batch.label)
        num_sequences = batch.label.numel()
        self.means.add(f'loss/{name}', loss, num_sequences)
        if name == self.task.dev[0]:
            self.means.add_densities(graphs, num_sequences)

    def compute(self, stage: str) -> dict[str, Tensor]:
        values = {f'{metric}/{name}': value for name, collection in self.metrics.items()
                  for metric, value in collection.compute().items()}
        for collection in self.metrics.values():
            collection.reset()
        return values


def new_metrics(num_classes: int) -> MetricCollection:
    """Return the metrics of a classifier with ``num_classes`` classes."""
    if not num_classes:
        with warnings.catch_warnings():
            # the metric warns that it keeps all scores, but these are few
            warnings.simplefilter('ignore')
            return MetricCollection({'spearman': SpearmanCorrCoef(), 'pearson': PearsonCorrCoef()})
    metrics = {'accuracy': MulticlassAccuracy(num_classes, average='micro'),
               'macro_f1': MulticlassF1Score(num_classes, average='macro'),
               'matthews': Matthews(num_classes)}
    metrics |= {'f1': BinaryF1Score()} if num_classes == 2 else {'published_f1': PublishedF1(3)}
    # Compute groups would copy PublishedF1's state into the other metrics.
    return MetricCollection(metrics, compute_groups=False)


class Matthews(MulticlassConfusionMatrix):
    r"""Matthews' correlation of predictions and labels (Matthews, 1975; Gorodkin, 2004).

    .. math::
        \frac{c s - \sum_k p_k t_k}{\sqrt{(s^2 - \sum_k p_k^2)(s^2 - \sum_k t_k^2)}}

    Of s examples, c are right. Class k is predicted p_k times and true t_k times. If all
    predictions or all labels are of one class, the correlation is 0, as in scikit-learn, which GLUE
    uses. For two classes, torchmetrics returns a small nonzero value there.
    """

    def compute(self) -> Tensor:
        matrix = super().compute().double()
        size, predicted, true = matrix.sum(), matrix.sum(dim=0), matrix.sum(dim=1)
        spread = (size**2 - predicted.square().sum()) * (size**2 - true.square().sum())
        covariance = matrix.trace() * size - (predicted * true).sum()
        return covariance / spread.sqrt() if spread > 0 else spread


class PublishedF1(MulticlassConfusionMatrix):
    r"""F1 of class 1 against class 0. Examples with class 2 as label or prediction are ignored.

    .. math:: \frac{2 C_{11}}{2 C_{11} + C_{01} + C_{10}}

    Nyströmformer's script computes this F1 on MNLI too, where class 1 is neutral and class 0 is
    contradiction. SBM-Transformer follows the protocol of Nyströmformer (Sec. 5.3) but has not
    released a script for it. Its Table 4 therefore probably reports this F1.
    """

    def compute(self) -> Tensor:
        matrix = super().compute().double()
        return 2 * matrix[1, 1] / (2 * matrix[1, 1] + matrix[0, 1] + matrix[1, 0]).clamp(min=1)
