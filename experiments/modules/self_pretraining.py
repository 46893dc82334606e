"""Pre-training on the inputs of a task, without its labels."""

import torch
from torch import Tensor

from experiments.data.batch import NO_LABEL, TokenBatch
from experiments.modules.classification import Classification
from experiments.modules.densities import Graphs
from graphattn.models import CausalLanguageModel


class SelfPretraining(Classification):
    r"""Training of a model to predict the next token of the inputs of a task, by cross-entropy. The
    labels of the task are not used.

    .. math:: -\frac{1}{|I|} \sum_{i \in I} \log p(t_{i+1} \mid t_1, ..., t_i)

    I is the set of tokens that are neither the last of their sequence nor padding. After the
    pre-training, :class:`experiments.modules.Classification` starts from the encoder
    (``pretrained``), without the causal restriction.

    Args:
        model (CausalLanguageModel): The model to train.
        **kwargs: Arguments of :class:`experiments.modules.Classification`.

    Source: Amos et al., "Never train from scratch" (2024), Sec. 3.
    """

    model_kind = CausalLanguageModel

    def targets(self, batch: TokenBatch, stage: str) -> Tensor:
        return next_tokens(batch.tokens, batch.ptr, self.model.encoder.padding_token)

    def evaluate(self, batch: TokenBatch, stage: str) -> tuple[Tensor, Graphs]:
        return super().evaluate(batch._replace(label=self.targets(batch, stage)), stage)


def next_tokens(tokens: Tensor, ptr: Tensor, padding_token: int | None = None) -> Tensor:
    """Return the next token of each token, int64 ``[num_tokens]``, or ``NO_LABEL``."""
    is_last = tokens.new_zeros(len(tokens) + 1, dtype=torch.bool).index_fill(0, ptr[1:], True)[1:]
    is_padding = tokens == (NO_LABEL if padding_token is None else padding_token)
    return tokens.roll(-1).masked_fill(is_last | is_padding, NO_LABEL)
