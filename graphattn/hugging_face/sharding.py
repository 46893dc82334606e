"""Transformers models whose attention follows graphs, on some of the tokens of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from graphattn._checks import check_kind
from graphattn.functional.drive import LOCAL, Placement, drive
from graphattn.functional.folding import repeat_heads
from graphattn.functional.shard import Shard
from graphattn.hugging_face.lazy_mask import LazyMask
from graphattn.hugging_face.modules import attention_modules, diffusion_of
from graphattn.ops import LogitTerms
from graphattn.sources.base import add_terms

__all__ = ['TokenModel']


class TokenModel(nn.Module):
    """Wrap a transformers model whose attention follows graphs (:func:`attach`), so that it is
    called with tokens and ``ptr`` like an :class:`graphattn.models.Encoder`.

    The tokens of all sequences follow one another without padding, so that
    :func:`graphattn.distributed.sequence_parallel` can divide them over processes. Apart from
    attention, the model must compute each token independently of the others.

    Args:
        model (PreTrainedModel): A model whose attention modules are all attached to sources. It
            takes ``position_ids`` and passes further arguments on to its attention.

    Raises:
        TypeError: ``model`` is no Module.
        ValueError: An attention module is not attached to a source.

    Example:
        >>> import torch
        >>> from graphattn.hugging_face import TokenModel, attach
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> model = TokenModel(attach(bert, 'SlidingWindow(4)'))
        >>> model(torch.randint(100, (20,)), torch.tensor([0, 20])).shape
        torch.Size([20, 32])
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        check_kind('model', model, nn.Module)
        modules = attention_modules(model)
        for name, module in modules.items():
            if getattr(module, 'graph_source', None) is None:
                raise ValueError(f"'model' must have a graph attached to each attention module "
                                 f"(got {name!r} without a graph); call attach(model, along)")
        self.model, self._num_modules = model, len(modules)

    def forward(self, x: Tensor, ptr: Tensor, *, placement: Placement = LOCAL,
                generator: torch.Generator | None = None, **arguments: Any) -> Tensor:
        """Return the first output of the model, such as the last hidden states,
        ``[num_tokens, channels]``.

        Args:
            x (Tensor): Token ids ``[num_tokens]``.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
            placement (Placement, optional): The part of a batch that one process computes.
            generator (torch.Generator, optional): Random generator of sources that draw edges.
            **arguments: Further arguments of the model.

        Raises:
            ValueError: The model's output has no row for each token, or the model does not pass its
                keyword arguments on to its attention.
        """
        shard = _Whole(ptr) if placement is LOCAL else placement
        part = PartOfBatch(shard, generator)
        out = self.model(x.unsqueeze(0), position_ids=shard.positions().unsqueeze(0),
                         use_cache=False, part_of_batch=part, **arguments)[0]
        if missing := self._num_modules - len(part.seen):
            raise ValueError(f"'model' must pass its keyword arguments on to its attention (got "
                             f"{type(self.model).__name__}, in which {missing} modules do not "
                             f"receive them)")
        if out.dim() != 3 or out.size(1) != x.size(0):
            raise ValueError(f"'model' must return one row for each token (got "
                             f"{type(self.model).__name__}, which returns shape "
                             f"{tuple(out.shape)}); use a model without pooling, such as its base "
                             f"model")
        return out.squeeze(0)


class _Whole(Shard):
    """A Shard that has all tokens of a batch, so that no other processes are needed."""

    def __init__(self, ptr: Tensor):
        super().__init__(ptr, 0, int(ptr[-1]))

    def gather(self, x: Tensor) -> Tensor:
        return x

    def check_graph(self, graph: Any, heads: int) -> None:
        raise NotImplementedError

    def place(self, layer: Any, key: Tensor, graph: Any, heads: int | None,
              **options: Any) -> Placement:
        return Placement(heads)


@dataclass
class PartOfBatch:
    """The tokens of a batch that one of several processes computes."""

    shard: Shard
    generator: torch.Generator | None
    seen: set[nn.Module] = field(default_factory=set)  # modules that have called attend()

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
               mask: Tensor | None, is_causal: bool, terms: LogitTerms) -> Tensor:
        """Return the output ``[1, num_own, heads, channels]`` of a module for these tokens."""
        # query: [1, heads, num_own, channels]; key and value: [1, num_kv_heads, num_own, channels]
        self.seen.add(module)
        attachment, source = module.graph_attachment, module.graph_source
        hops, teleport = diffusion_of(module)
        query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        source = source.causal() if self._is_causal(mask, is_causal) else source
        keys = repeat_heads(key, query.size(1)) if source.per_head else key
        graph = source(query, keys, self.shard.own_ptr, placement=self.shard,
                       generator=self.generator)
        owners = query.size(1) if graph.num_queries != query.size(0) else None
        placement = self.shard.place(module, key, graph, owners, hops=hops, teleport=teleport,
                                     dropout_p=terms.dropout_p)
        out, _ = drive(query, key, value, graph, add_terms(source, graph, terms), hops, teleport,
                       placement, backend=attachment.backend)
        self.shard.attended(module)
        return out.unsqueeze(0)

    @staticmethod
    def _is_causal(mask: Tensor | None, is_causal: bool) -> bool:
        if isinstance(mask, LazyMask):
            if mask.how.get('attention_mask') is not None:
                raise ValueError("'attention_mask' must be None in sequence parallelism, because "
                                 "'ptr' marks the sequences")
            return not mask.is_bidirectional
        if mask is not None:
            raise ValueError(f"'attention_mask' must be None in sequence parallelism, because "
                             f"'ptr' marks the sequences (got shape {tuple(mask.shape)})")
        return is_causal
