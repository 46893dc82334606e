"""Run a model and measure its attention weights, one sequence and a few queries at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphattn.functional.folding import repeat_heads
from graphattn.graphs.masks import is_above_lowest
from graphattn.hugging_face.attaching import attends, switch
from graphattn.layers.padded import PairRules
from graphattn.ops import LogitTerms
from graphattn.placement.padded import PaddedTokens

__all__ = ['Attending', 'OneSequence', 'as_batches', 'run_all']

BLOCK = 2**20  # weights at once


def run_all(model: nn.Module, modules: dict[str, nn.Module], batches: Iterable[Any],
            watching: Attending, ids: Tensor) -> None:
    """Run an attached model on all batches, with the attention of ``watching``."""
    # Its attachments change, so callers restore them by kept().
    for name, module in modules.items():
        if attends(module):
            switch(module, replace(module.graph_attachment, is_named=False,
                                   watch=partial(watching.attend, name)))
    for batch in batches:
        _run(model, batch, watching, ids)


@torch.no_grad()
def _run(model: nn.Module, batch: Any, watching: Attending, ids: Tensor) -> None:
    if isinstance(batch, Sequence) and len(batch) == 1 and isinstance(batch[0], Tensor):
        batch = batch[0]  # of a DataLoader of a TensorDataset
    given = batch if isinstance(batch, Mapping) else {'input_ids': batch}
    batch = {name: _tensor(name, value, model.device) for name, value in given.items()
             if name != 'labels'}
    if getattr(model.config, 'use_cache', None):
        batch.setdefault('use_cache', False)
    watching.begin(*(None if tokens is None else torch.isin(tokens, ids.to(tokens.device))
                     for tokens in map(batch.get, ('input_ids', 'decoder_input_ids'))))
    model.base_model(**batch)


def as_batches(batches: Any) -> Iterable[Any]:
    """Return the inputs of a model one by one, also if there is only one and it stands alone."""
    is_one = isinstance(batches, Mapping | str) or isinstance(
        batches, Tensor | np.ndarray) and batches.ndim < 3
    if isinstance(batches, Sequence) and batches and isinstance(batches[0], int):
        is_one = True
    if not (is_one or isinstance(batches, Iterable)):
        raise TypeError(f"'batches' must be an iterable of tensors, or of dicts of the model's "
                        f"arguments (got {type(batches).__name__})")
    return [batches] if is_one else batches


def _tensor(name: str, value: Any, device: torch.device) -> Any:
    is_one, kind = isinstance(value, Sequence) or name == 'input_ids', type(value).__name__
    if isinstance(value, np.ndarray | Sequence) and not isinstance(value, str):
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"'batches' must contain tensors, or rows of equal lengths (got "
                            f"{name!r} of type {kind}: {error}); call the tokenizer with "
                            f"padding=True and return_tensors='pt'") from error
    if name == 'input_ids' and (not isinstance(value, Tensor) or value.is_floating_point()):
        raise TypeError(f"'batches' must contain tensors of token ids, or dicts of the model's "
                        f"arguments (got {getattr(value, 'dtype', kind)}); call the tokenizer with "
                        f"return_tensors='pt'")
    if not isinstance(value, Tensor):
        return value
    return (value[None] if is_one and value.dim() == 1 else value).to(device)


@dataclass
class Attending(ABC):
    """Base class of attention that measures its own weights, sequence by sequence."""

    # Bool [batch, length] for input_ids and for decoder_input_ids, None if the batch lacks them.
    is_special: tuple[Tensor | None, ...] = field(default=(None, None), kw_only=True)
    is_first: bool = field(default=False, kw_only=True)  # no module has attended in this batch yet
    lengths: list[int] = field(default_factory=list, kw_only=True)  # as the first module has them

    def begin(self, *is_special: Tensor | None) -> None:
        self.is_special, self.is_first = is_special, True

    def attend(self, name: str, query: Tensor, key: Tensor, value: Tensor, tokens: PaddedTokens,
               rules: PairRules, terms: LogitTerms) -> Tensor:
        """Return what :func:`graphattn.layers.padded.attend_padded` does; measure the weights."""
        if not tokens.is_square:
            raise ValueError("'batches' must contain whole sequences (got keys that are not the "
                             "tokens of the queries); pass no cache to the model")
        heads = query.size(2)
        dtype = value.dtype  # perhaps of 16 bits
        query, key, value = (x.to(torch.promote_types(dtype, torch.float)) for x in (
            tokens.queries(query), tokens.keys(key), tokens.keys(value)))
        key, value = (repeat_heads(x, heads) for x in (key, value))
        scale, sink = query.size(-1)**-.5 if terms.scale is None else terms.scale, terms.sink
        has_own = self.is_special[1] is not None and 'decoder' in name.split('.')
        is_special = self.is_special[has_own]
        out, ends = value.new_zeros(*query.shape[:2], value.size(-1)), tokens.ptr.tolist()
        for first, last in zip(ends[:-1], ends[1:]):
            if last > first:
                nodes = slice(first, last)
                row, slot = tokens.key_slots(torch.arange(first, last, device=query.device))
                ours, theirs, values = (x[nodes].transpose(0, 1).contiguous()
                                        for x in (query, key, value))
                one = OneSequence(ours, theirs, scale, row, slot, rules, tokens.batch,
                                  terms.softcap,
                                  None if sink is None else sink.to(ours).view(-1, 1, 1))
                special = None if is_special is None else is_special[row, slot]
                out[nodes] = self._see(name, one, values, special).transpose(0, 1)
        if self.is_first:
            self.lengths += [length for length in tokens.lengths if length]
            self.is_first = False
        return tokens.pad_queries(out.to(dtype))

    @abstractmethod
    def _see(self, name: str, one: OneSequence, value: Tensor, is_special: Tensor | None) -> Tensor:
        """Measure the weights of one sequence; return the output ``[heads, length, channels]``."""


@dataclass
class OneSequence:
    """Queries and keys of one sequence, and what else determines its attention weights."""

    query: Tensor  # [heads, length, channels]
    key: Tensor
    scale: float
    row: Tensor  # of the padded batch, the same for each token, int64 [length]
    slot: Tensor  # position of each token in this row, int64 [length]
    rules: PairRules
    batch: int  # rows of the padded batch
    softcap: float | None
    sink: Tensor | None  # [heads, 1, 1]

    def blocks(self) -> Iterator[Tensor]:
        """Yield indices of a few consecutive queries at a time, until all were yielded."""
        heads, length, _ = self.query.shape
        return iter(torch.arange(length, device=self.query.device).split(
            max(1, BLOCK // (length * heads))))

    def weights(self, rows: Tensor, heads: slice = slice(None)) -> Tensor:
        """Return the attention weights of the queries ``rows``, ``[heads, rows, length]``."""
        logit = (self.query[heads, rows] * self.scale) @ self.key[heads].transpose(1, 2)
        if self.softcap is not None:
            logit = self.softcap * (logit / self.softcap).tanh()
        for bias in self._terms(rows, heads):
            is_mask = bias.dtype == torch.bool
            may_attend = bias if is_mask else is_above_lowest(bias)
            logit = (logit if is_mask else logit + bias).masked_fill(~may_attend, -math.inf)
        highest = logit.amax(dim=-1, keepdim=True)
        if self.sink is not None:
            highest = highest.maximum(self.sink[heads])
        highest = highest.masked_fill(highest == -math.inf, 0)
        weight = (logit - highest).exp()
        whole = weight.sum(-1, keepdim=True)
        if self.sink is not None:
            whole = whole + (self.sink[heads] - highest).exp()
        tiny = torch.finfo(weight.dtype).tiny  # allowed pairs stay positive, so they can be counted
        weight = (weight / whole.clamp(min=tiny)).clamp_(min=tiny)
        return weight.masked_fill_(logit == -math.inf, 0)

    def _terms(self, rows: Tensor, heads: slice) -> Iterator[Tensor]:
        # Each is [heads or 1, rows, length]: where a query may attend (bool), or added to logits.
        query, key = torch.broadcast_tensors(self.slot[rows, None], self.slot)
        if self.rules.causal:
            yield (key <= query).unsqueeze(0)
        if self.rules.allows is not None:
            where = self.row[0].expand(query.numel()), query.flatten(), key.flatten()
            yield self.rules.allows(*where).view(1, *query.shape)
        for table in self.rules.tables:
            of_row = table.expand(self.batch, *table.shape[1:])[self.row[0]]
            of_row = of_row[heads] if len(of_row) > 1 else of_row
            yield of_row[:, query, key]
