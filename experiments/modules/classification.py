"""Training of a classifier of sequences or tokens."""

import torch.nn.functional as F
from torch import Tensor, nn

from experiments.data.batch import NO_LABEL, TokenBatch
from experiments.modules.base import Training
from experiments.modules.densities import Graphs


class Classification(Training):
    """Training of a classifier by cross-entropy. Loss, accuracy, and the density of each head and
    layer are logged.

    Args:
        model (nn.Module): The model. ``model(tokens, ptr, return_graphs=True)`` must return logits
            and graphs.
        pretrained (str, optional): A checkpoint from which the encoder is initialised, for example
            of :class:`experiments.modules.SelfPretraining`. See
            :func:`experiments.runs.pretrained.load_encoder`.
        **kwargs: Arguments of :class:`experiments.modules.Training`.
    """

    def __init__(self, model: nn.Module, pretrained: str | None = None, **kwargs):
        super().__init__(model, **kwargs)
        self.start_from(pretrained)

    def targets(self, batch: TokenBatch, stage: str) -> Tensor | None:
        return batch.label

    def predict_step(self, batch: TokenBatch, batch_idx: int = 0) -> Tensor:
        """Return the probability of each class for each example,
        ``[num_examples, num_classes]``."""
        return self.model(batch.tokens, batch.ptr).softmax(dim=-1)

    def evaluate(self, batch: TokenBatch, stage: str) -> tuple[Tensor, Graphs]:
        logits, graphs = self.model(batch.tokens, batch.ptr, return_graphs=True)
        num_labels = (batch.label != NO_LABEL).sum()
        loss = F.cross_entropy(logits, batch.label, reduction='sum') / num_labels.clamp(min=1)
        self.log_pass(stage, batch, loss, logits, graphs)
        return loss, graphs

    def log_pass(self, stage: str, batch: TokenBatch, loss: Tensor, logits: Tensor,
                 graphs: Graphs) -> None:
        num_labels = (batch.label != NO_LABEL).sum()
        is_right = logits.argmax(dim=-1) == batch.label
        accuracy = is_right.sum().float() / num_labels.clamp(min=1)
        self.log_means({f'{stage}/loss': loss, f'{stage}/accuracy': accuracy}, num_labels,
                       prog_bar=True)
        self.log_densities(stage, graphs, batch.ptr.numel() - 1)
