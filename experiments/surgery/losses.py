"""Losses of language models of transformers."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.surgery.tokens import PADDING

IGNORED = -100  # target of a token without a loss
MASKED = 0.15  # of the tokens, as in BERT
Loss = Callable[[nn.Module, Tensor, int], Tensor]


def loss_of(model: nn.Module, mask_token: int | None = None) -> Loss:
    """Return the loss of a model as ``loss(model, tokens, seed)``: of masked tokens if its class
    contains ``ForMaskedLM``, else of next tokens. Padding is -1."""
    name = type(model).__name__
    if 'ForMaskedLM' in name:
        if mask_token is None:
            raise ValueError(f"'mask_token' must be the id of the mask for {name} (got None)")
        return lambda model, tokens, seed: masked_loss(model, tokens, seed, mask_token)
    if 'LMHead' in name or 'ForCausalLM' in name:
        return next_token_loss
    raise ValueError(f"'model' must be a language model, with ForCausalLM, LMHead or ForMaskedLM "
                     f"in its name (got {name})")


def next_token_loss(model: nn.Module, tokens: Tensor, seed: int = 0) -> Tensor:
    return _cross_entropy(logits_of(model, tokens)[:, :-1],
                          tokens[:, 1:].masked_fill(tokens[:, 1:] == PADDING, IGNORED))


def masked_loss(model: nn.Module, tokens: Tensor, seed: int, mask_token: int) -> Tensor:
    """Mask 15 % of the tokens at random, by ``seed``, and return the mean cross-entropy of the
    masked tokens."""
    masked, targets = mask_tokens(tokens, seed, mask_token)
    return _cross_entropy(logits_of(model, masked), targets)


def mask_tokens(tokens: Tensor, seed: int, mask_token: int) -> tuple[Tensor, Tensor]:
    """Return tokens, 15 % of them masked by ``seed``, and the targets, -100 elsewhere."""
    drawn = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < MASKED
    drawn &= tokens != PADDING
    return tokens.masked_fill(drawn, mask_token), tokens.masked_fill(~drawn, IGNORED)


def trimmed(tokens: Tensor) -> Tensor:
    """Return a batch of tokens ``[batch, length]`` without the last columns if they contain only
    padding."""
    return tokens[:, :int((tokens != PADDING).any(0).nonzero().max()) + 1]


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the logits of a model of transformers for ``tokens``, ids ``[batch, length]`` with -1
    for padding."""
    options = {'use_cache': False} if getattr(model.config, 'use_cache', None) else {}
    is_token = tokens != PADDING
    if not is_token.all():
        options['attention_mask'] = is_token
    return model(input_ids=tokens.clamp(min=0), **options).logits


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def mean_loss(model: nn.Module, tokens: Tensor, loss: Loss, batch_size: int) -> float:
    """Return the mean loss over all tokens of some sequences, in evaluation mode."""
    was_training = model.training
    model.eval()
    batches = [trimmed(batch) for batch in tokens.split(batch_size)]
    sizes = [int((batch != PADDING).sum()) for batch in batches]
    total = sum(size * float(loss(model, batch, number))
                for number, (batch, size) in enumerate(zip(batches, sizes)))
    model.train(was_training)
    if not math.isfinite(total):
        raise ValueError(f"'model' must have a finite loss on 'data' (got {total}); its weights "
                         f"are not finite, or too large for the precision")
    return total / sum(sizes)
