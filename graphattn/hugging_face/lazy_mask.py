"""Masks of transformers that are evaluated on edges only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from graphattn.hugging_face.calls import Packing, present_call
from graphattn.layers.padded import PairRules
from graphattn.placement.padded import PaddedTokens

__all__ = ['LazyMask', 'lazy_mask', 'lazy_mask_of_logits']

_COPIES = {torch.ops.aten.detach.default, torch.ops.aten.alias.default,
           torch.ops.aten.clone.default, torch.ops.aten._to_copy.default}


class LazyMask(Tensor):
    """A mask of transformers whose values ``[batch, 1, query, key]`` are computed only if read."""

    # Graph attention evaluates the mask on edges only. Other code reads the values that the model's
    # previous implementation of attention would get: bool for 'sdpa', or floating and added to
    # logits for 'eager'. A copy, also on another device, still has no values, because values alone
    # do not distinguish padding from other masking.

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, *, batch_size: int, q_length: int, kv_length: int, q_offset: int = 0,
                kv_offset: int = 0, implementation: str = 'sdpa',
                packing: Packing | None = None, **how: Any):
        shape = batch_size, 1, q_length, kv_length
        dtype = how.get('dtype', torch.float) if implementation == 'eager' else torch.bool
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype,
                                             device=how.get('device', 'cpu'))
        mask.how = {**how, 'batch_size': batch_size, 'q_length': q_length, 'kv_length': kv_length,
                    'q_offset': int(q_offset), 'kv_offset': kv_offset}
        mask.implementation, mask.packing = implementation, packing
        mask.made: dict[str, Any] = {}
        return mask

    def __init__(self, **how: Any):
        pass  # Tensor.__init__ takes no arguments

    @classmethod
    def __torch_dispatch__(cls, func: Callable, types: Sequence[type], args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func in _COPIES and (kwargs or {}).get('dtype') in (None, args[0].dtype):
            return args[0]._copied((kwargs or {}).get('device'))
        return func(*tree_map_only(cls, cls.dense, args),
                    **tree_map_only(cls, cls.dense, kwargs or {}))

    def __repr__(self) -> str:
        return f'{type(self).__name__}{tuple(self.shape)}'

    def _copied(self, device: torch.device | None) -> LazyMask:
        if device is None or device == self.device:
            copied = self._with(**self.how)
            copied.made = self.made
            return copied
        return self._with(**tree_map_only(Tensor, lambda x: x.to(device), self.how) | {
            'device': device})

    def _with(self, **how: Any) -> LazyMask:
        return LazyMask(implementation=self.implementation, packing=self.packing, **how)

    def for_queries(self, num_queries: int) -> LazyMask:
        """Return this mask for ``num_queries`` queries, if it has one and excludes only padding."""
        if not self.is_bidirectional or self.size(2) != 1 != num_queries:
            return self
        return self._with(**self.how | {'q_length': num_queries})

    def is_implied(self, num_keys: int, is_causal: bool) -> bool:
        """Return whether a module with this number of keys knows all that the mask says."""
        if (self.is_bidirectional and self.size(3) < num_keys
                and self.how.get('attention_mask') is None):
            return True  # in prefix tuning of an encoder, more keys come before the first token
        # Transformers passes no mask to its own SDPA that says only whether attention is causal.
        return (self.implementation == 'sdpa' and self.is_bidirectional == is_causal
                and self.padding() is None and self.made_for('sdpa') is None)

    def dense(self) -> Tensor:
        """Return the values of the mask, as transformers builds them."""
        make = partial(self.made_for, self.implementation, allow_is_causal_skip=False,
                       allow_is_bidirectional_skip=False)
        if not self.how.get('use_vmap', False):
            return make()
        with ThreadPoolExecutor(1) as thread:  # torch.vmap cannot be called within a dispatch
            return thread.submit(make).result()

    def made_for(self, implementation: str, **options: bool) -> Any:
        """Return the mask that transformers builds for an implementation, None if it needs none."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        name = f'{implementation} {options}'
        if name not in self.made:
            make = ALL_MASK_ATTENTION_FUNCTIONS.get(implementation)
            self.made[name] = None if make is None else make(**{**self.how, **options})
        return self.made[name]

    def tokens(self, same_tokens: bool) -> PaddedTokens:
        """Return where queries and keys, perhaps the same tokens, are not padding, once."""
        name = f'tokens {same_tokens}'
        if name not in self.made:
            self.made[name] = self._tokens(same_tokens, self.padding())
        return self.made[name]

    def slots(self) -> PaddedTokens:
        """Return the positions of queries and keys as if every position had a token."""
        return self._tokens(False, None)

    def _tokens(self, same_tokens: bool, is_token: Tensor | None) -> PaddedTokens:
        how, first_query = self.how, self.how['q_offset']
        if same_tokens and self.is_bidirectional and how.get('attention_mask') is not None:
            # An encoder with keys before its tokens, as in prefix tuning: only the padding mask
            # counts them.
            first_query = how['attention_mask'].size(-1) - how['q_length']
        return PaddedTokens(how['batch_size'], how['q_length'], how['kv_length'], self.device,
                            is_token, first_query, how['kv_offset'], same_tokens)

    @property
    def is_of_encoder(self) -> bool:
        """Return whether transformers makes the mask for attention that is not causal."""
        return 'allow_is_bidirectional_skip' in self.how

    @property
    def is_bidirectional(self) -> bool:
        """Return whether the mask excludes only padding."""
        from transformers.masking_utils import bidirectional_mask_function
        return self.how.get('mask_function') is bidirectional_mask_function

    def padding(self) -> Tensor | None:
        """Return which positions have a token, bool ``[batch, positions]``, or None if all do."""
        is_token = self.how.get('attention_mask')
        if is_token is None or bool(is_token.all()):
            return None
        positions = self.how['kv_offset'] + self.how['kv_length']
        is_token = is_token.bool()
        return nn.functional.pad(is_token, (0, max(positions - is_token.size(1), 0)))

    def rules(self) -> PairRules:
        """Return whether the mask is causal, or a function of pairs; padding is not among them."""
        from transformers.masking_utils import causal_mask_function
        says = self.how.get('mask_function', causal_mask_function)
        if self.is_bidirectional or says is causal_mask_function:
            return PairRules(causal=not self.is_bidirectional)
        return PairRules(allows=self._on_edges(says))

    def rules_with_padding(self) -> PairRules:
        """Return the rules of :meth:`rules`, which also exclude padding as a key."""
        rules, is_token = self.rules(), self.padding()
        if is_token is None:
            return rules
        allows = rules.allows or (lambda sequence, query, key: torch.ones_like(key, dtype=bool))
        return rules._replace(allows=lambda sequence, query, key: (
            is_token[sequence, key] & allows(sequence, query, key)))

    def _on_edges(self, says: Callable) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        def allows(sequence: Tensor, query: Tensor, key: Tensor) -> Tensor:
            where = sequence, torch.zeros_like(sequence), query, key
            if not self.how.get('use_vmap', False):
                return says(*where).expand(key.shape)
            with TransformGetItemToIndex():  # a user's function of one pair
                return torch.vmap(says)(*where)
        return allows


def lazy_mask(**how: Any) -> LazyMask | None:
    """Return a :class:`LazyMask`, in place of transformers' own functions that build masks."""
    # In compiled code, None if the mask says only whether attention is causal, as transformers does
    # for SDPA; any other mask causes a graph break.
    return None if torch.compiler.is_compiling() and _is_implied(how) else _made_lazily(**how)


def _is_implied(how: dict[str, Any]) -> bool:
    from transformers.masking_utils import bidirectional_mask_function
    call = present_call()
    if how.get('attention_mask') is not None or how.get('use_vmap', False) or (
            call is not None and call.packing is not None):
        return False
    window, length = how.get('local_size'), how['kv_length']
    if window is not None and length >= window or how['q_length'] != length:
        return False
    is_at_start = isinstance(how.get('q_offset', 0), int) and how.get('q_offset', 0) == 0
    if how['mask_function'] is bidirectional_mask_function:
        return is_at_start and how.get('allow_is_bidirectional_skip', False)
    return is_at_start and call is not None and call.has_only_tokens


@torch.compiler.disable(reason='a mask without values cannot be traced')
def _made_lazily(**how: Any) -> LazyMask:
    call = present_call()
    return LazyMask(packing=None if call is None else call.packing, **how)


def lazy_mask_of_logits(**how: Any) -> LazyMask:
    """Return a lazy mask of floating values, for models that add masks to logits."""
    return _made_lazily(implementation='eager', **how)
