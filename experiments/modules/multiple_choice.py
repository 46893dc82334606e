"""Training of a multiple-choice model."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.utils import scatter, to_dense_batch

from experiments.data.batch import ChoiceBatch
from experiments.modules.base import Training
from experiments.modules.densities import Graphs
from experiments.modules.text_inputs import (
    check_shares_a_pattern,
    graph_of_questions,
    segments_for,
)
from graphattn.extension import cache_host_copies
from graphattn.models import MultipleChoiceModel


class MultipleChoice(Training):
    """Training of a multiple-choice model by cross-entropy.

    The classes of the cross-entropy are the choices of a question. The accuracy is logged.

    Args:
        model (nn.Module): A :class:`graphattn.models.MultipleChoiceModel`.
        global_question (bool): Whether the tokens of the question, and of choices in the same
            sequence, attend to all tokens and are attended by all. This requires layers that share
            a PatternSource.
        pretrained (str, optional): A checkpoint to initialise the encoder from.
        **kwargs: Arguments of :class:`experiments.modules.Training`.
    """

    model_kind, batch_kind = MultipleChoiceModel, ChoiceBatch

    def __init__(self, model: nn.Module, global_question: bool = False,
                 pretrained: str | None = None, **kwargs):
        super().__init__(model, **kwargs)
        if global_question:
            check_shares_a_pattern(model.encoder, 'global_question')
        self.global_question = global_question
        self.start_from(pretrained)

    @cache_host_copies
    def training_step(self, batch: ChoiceBatch, batch_idx: int) -> Tensor:
        loss, _, graphs = self._loss(batch)
        self.log_means({'train/loss': loss}, batch.label.numel(), prog_bar=True)
        return self.penalised(loss, graphs)

    def targets(self, batch: ChoiceBatch, stage: str) -> Tensor:
        return batch.label

    def _loss(self, batch: ChoiceBatch) -> tuple[Tensor, Tensor, Graphs]:
        encoder = self.model.encoder
        graph = graph_of_questions(encoder, batch.tokens, batch.ptr, batch.num_global,
                                   is_global=self.global_question, links_equal=False)
        logits, graphs = self.model(
            batch.tokens, batch.ptr, segments=segments_for(encoder, batch.segments), graph=graph,
            selected=batch.selected, return_graphs=True)
        num_choices = int(batch.choice_ptr[-1])
        logits = scatter(logits.float(), batch.choice, dim_size=num_choices, reduce='mean')
        question = torch.repeat_interleave(batch.choice_ptr.diff(), output_size=num_choices)
        dense, _ = to_dense_batch(logits, question, fill_value=torch.finfo(logits.dtype).min,
                                  batch_size=batch.label.numel())
        return F.cross_entropy(dense, batch.label), dense, graphs

    def evaluate(self, batch: ChoiceBatch, stage: str) -> None:
        loss, logits, graphs = self._loss(batch)
        accuracy = (logits.argmax(dim=1) == batch.label).float().mean()
        self.log_means({f'{stage}/loss': loss, f'{stage}/accuracy': accuracy}, batch.label.numel())
        self.log_densities(stage, graphs, batch.ptr.numel() - 1)
