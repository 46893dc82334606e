"""BERT's pre-training: prediction of masked tokens and of next sentences."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from experiments.data.batch import TextBatch
from experiments.modules.base import Training
from experiments.modules.densities import Graphs
from experiments.modules.text_inputs import segments_for
from experiments.runs.pretrained import load_model, tokenizer_of
from experiments.runs.pretrained import roberta as with_roberta
from graphattn.extension import cache_host_copies


class LanguageModelling(Training):
    r"""Training of a model to predict masked tokens and next sentences, with a penalty on learned
    masks.

    .. math:: \mathcal{L}_\mathrm{MLM} + \mathcal{L}_\mathrm{NSP} + \lambda \lVert M \rVert_1

    This is the loss of SparseBERT, Sec. 3.1.1 and Eq. 7. Both losses, both accuracies, and the
    density of every head are logged. Development and testing also log three kinds of numbers: the
    perplexity of the masked tokens; the unigram entropy, which is the lowest loss without context;
    and the loss in bits. Bits are given per token (BPC in Longformer's script), and per character
    and per byte of the text, from the average length of a token:

    .. math::
        \mathrm{BPC} = \frac{\mathcal{L}_\mathrm{MLM}}{\ln 2} \cdot
        \frac{\mathrm{tokens}}{\mathrm{characters}}

    Hidden tokens are drawn uniformly, so the average length applies to them.

    Args:
        model (nn.Module): A :class:`graphattn.models.MaskedLanguageModel`.
        roberta (str, optional): The model.safetensors or pytorch_model.bin of a Hugging Face
            RoBERTa to initialise the model from, see :func:`experiments.runs.pretrained.roberta`.
            For longer sequences, its positions are repeated.
        pretrained (str, optional): A checkpoint to initialise the model from, for example of a
            model trained on shorter sequences.
        **kwargs: Arguments of :class:`experiments.modules.Training`.
    """

    batch_kind = TextBatch

    def __init__(self, model: nn.Module, roberta: str | None = None,
                 pretrained: str | None = None, **kwargs):
        super().__init__(model, **kwargs)
        if roberta is not None and pretrained is not None:
            raise ValueError("'pretrained' and 'roberta' must not both be given (got both); omit "
                             "one of them")
        if roberta is not None:
            with_roberta(roberta, model)
        if pretrained is not None:
            load_model(model, pretrained)
            self.pretrained_tokenizer = tokenizer_of(pretrained)

    @cache_host_copies
    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        loss, graphs = self.evaluate(batch, 'train')
        self.log('step_loss', loss, prog_bar=True, on_step=True)
        return self.penalised(loss, graphs)

    def on_validation_epoch_end(self) -> None:
        self._log_whole('val')

    def on_test_epoch_end(self) -> None:
        self._log_whole('test')

    def evaluate(self, batch: TextBatch, stage: str) -> tuple[Tensor, Graphs]:
        token_logits, sequence_logits, graphs = self.model(
            batch.tokens, batch.ptr, segments=segments_for(self.model.encoder, batch.segments),
            selected=batch.selected, return_graphs=True)
        num_selected, num_sequences = batch.target.numel(), batch.ptr.numel() - 1
        loss = self._loss(f'{stage}/mlm', token_logits, batch.target, num_selected)
        if sequence_logits is not None:
            loss = loss + self._loss(f'{stage}/nsp', sequence_logits, batch.label, num_sequences)
        if stage == 'train':
            self.log_means({f'{stage}/loss': loss}, num_sequences, prog_bar=True)
        self.log_densities(stage, graphs, num_sequences)
        return loss, graphs

    def _loss(self, name: str, logits: Tensor, target: Tensor, size: int) -> Tensor:
        """Return the cross-entropy of a task, 0 without tokens, and log it as ``name``."""
        loss = F.cross_entropy(logits, target, reduction='sum') / max(1, size)
        accuracy = (logits.argmax(dim=-1) == target).sum().float() / max(1, size)
        self.log_means({f'{name}_loss': loss, f'{name}_accuracy': accuracy}, size)
        return loss

    def _log_whole(self, stage: str) -> None:
        """Log the metrics that are computed from means over a whole evaluation, such as the
        perplexity."""
        measured = self.trainer.callback_metrics
        loss = measured[f'{stage}/mlm_loss']
        # A mean over the sums of batches would depend on the number of hidden tokens in each batch.
        self.log(f'{stage}/loss', loss + measured.get(f'{stage}/nsp_loss', 0.), prog_bar=True)
        self.log(f'{stage}/perplexity', loss.exp())
        data = self.trainer.datamodule
        self.log(f'{stage}/mlm_loss/unigram_entropy', data.unigram_entropy)
        bits = float(loss) * data.size['tokens'] / math.log(2)
        for name in ('token', 'character', 'byte'):
            self.log(f'{stage}/bits_per_{name}', bits / data.size[f'{name}s'])
